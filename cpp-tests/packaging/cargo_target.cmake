# CARGO_BUILD_TARGET when configuring: cargo builds for that target, and CMake takes the library from its directory.
cmake_minimum_required(VERSION 3.20)
include("${CMAKE_CURRENT_LIST_DIR}/nested.cmake")

execute_process(COMMAND "${RUSTC}" -vV OUTPUT_VARIABLE said COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "host: ([^\n]+)" host "${said}")
set(host "${CMAKE_MATCH_1}")

# A debug build, which compiles faster.
set(out "${CARGO_TARGET_DIR}/${host}/debug")
file(REMOVE "${out}/libsafealign.so" "${out}/libsafealign.a")
set(ENV{CARGO_BUILD_TARGET} "${host}")
nested_configure_or_fail("${CONSUMER}" "${BUILD}" -D CMAKE_BUILD_TYPE=Debug
  -D CONSUMER_FROM=add_subdirectory -D CONSUMER_LIBRARY=safealign::safealign
  -D "CONSUMER_SAFEALIGN=${SAFEALIGN}"
  -D "SAFEALIGN_CARGO_TARGET_DIR=${CARGO_TARGET_DIR}")
# What counts is the environment when configuring.
set(ENV{CARGO_BUILD_TARGET} "no-such-target")
nested_build("${BUILD}")
foreach(name libsafealign.so libsafealign.a)
  if(NOT EXISTS "${out}/${name}")
    message(FATAL_ERROR "cargo did not make ${out}/${name}")
  endif()
endforeach()
execute_process(COMMAND "${BUILD}/consumer" "${VERSION}" WORKING_DIRECTORY "${BUILD}" COMMAND_ERROR_IS_FATAL ANY)
