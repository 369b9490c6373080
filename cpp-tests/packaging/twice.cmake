# safealign brought into one build more than once is not an error, and links.
cmake_minimum_required(VERSION 3.20)
include("${CMAKE_CURRENT_LIST_DIR}/nested.cmake")

set(prefix "${PREFIX}")
if(INSTALLED STREQUAL "no")
  set(prefix)
endif()
nested_configure_or_fail("${CMAKE_CURRENT_LIST_DIR}/twice" "${BUILD}" "-DTWICE_FROM=${FROM}"
  "-DTWICE_REDIRECTS=${REDIRECTS}"
  -D "TWICE_VERSION=${VERSION}" -D "TWICE_SAFEALIGN=${SAFEALIGN}" -D "CMAKE_PREFIX_PATH=${prefix}"
  -D "SAFEALIGN_CARGO_TARGET_DIR=${CARGO_TARGET_DIR}")
# Again: what the first run put into the cache must not mislead the second.
execute_process(COMMAND "${CMAKE_COMMAND}" "${BUILD}" OUTPUT_QUIET COMMAND_ERROR_IS_FATAL ANY)
nested_build("${BUILD}")
foreach(library safealign safealign-static)
  execute_process(COMMAND "${BUILD}/with-${library}" "${VERSION}" WORKING_DIRECTORY "${BUILD}"
    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
