# A static library that links safealign is installed and exported, moved, and linked by a consumer.
cmake_minimum_required(VERSION 3.20)
include("${CMAKE_CURRENT_LIST_DIR}/nested.cmake")

file(REMOVE_RECURSE "${BUILD}")
nested_configure_or_fail("${CMAKE_CURRENT_LIST_DIR}/parent" "${BUILD}/parent" -D "PARENT_SAFEALIGN=${SAFEALIGN}"
  -D "SAFEALIGN_CARGO_TARGET_DIR=${CARGO_TARGET_DIR}")
nested_build("${BUILD}/parent")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}/parent" --prefix "${BUILD}/first"
  COMMAND_ERROR_IS_FATAL ANY)
file(RENAME "${BUILD}/first" "${BUILD}/moved")
# Only the archive is there, so that nothing else can be linked.
file(GLOB_RECURSE shared "${BUILD}/moved/*.so*")
file(REMOVE ${shared})

# Only the package of the parent is on the path: it finds safealign beside itself.
file(GLOB_RECURSE config "${BUILD}/moved/*/parentConfig.cmake")
get_filename_component(dir "${config}" DIRECTORY)
nested_configure_or_fail("${CMAKE_CURRENT_LIST_DIR}/consumer" "${BUILD}/consumer" -D "parent_DIR=${dir}")
nested_build("${BUILD}/consumer")
execute_process(COMMAND "${BUILD}/consumer/consumer" "${VERSION}" WORKING_DIRECTORY "${BUILD}/consumer"
  COMMAND_ERROR_IS_FATAL ANY)
