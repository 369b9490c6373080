# The Rust targets of a build, for what CMake knows of it. Nothing is built: there is no Apple system here to build for.
cmake_minimum_required(VERSION 3.20)
include("${CMAKE_CURRENT_LIST_DIR}/nested.cmake")
include("${SAFEALIGN}/cmake/cargo.cmake")

# This script calls itself for what has to fail.
if(FAILS)
  safealign_rust_targets(found)
  message(STATUS "got ${found}")
  return()
endif()

function(check expected system crosscompiling processor)
  cmake_parse_arguments(PARSE_ARGV 4 arg "" "TARGET;COMPILER" "ARCHITECTURES")
  set(SAFEALIGN_CARGO_TARGET "${arg_TARGET}")
  set(CMAKE_SYSTEM_NAME ${system})
  set(CMAKE_CROSSCOMPILING ${crosscompiling})
  set(CMAKE_SYSTEM_PROCESSOR "${processor}")
  set(CMAKE_OSX_ARCHITECTURES ${arg_ARCHITECTURES})
  set(CMAKE_C_COMPILER "${arg_COMPILER}")
  safealign_rust_targets(found)
  expect_equal("the target of ${system} ${processor} ${ARGN}" "${found}" "${expected}")
endfunction()

check("" Linux FALSE x86_64)
check("" Darwin FALSE arm64)
check(riscv64gc-unknown-linux-musl Linux FALSE x86_64 TARGET riscv64gc-unknown-linux-musl)
check(riscv64gc-unknown-linux-musl Linux TRUE aarch64 TARGET riscv64gc-unknown-linux-musl)

check(aarch64-apple-darwin Darwin FALSE x86_64 ARCHITECTURES arm64)
check(x86_64-apple-darwin Darwin FALSE arm64 ARCHITECTURES x86_64)
check("x86_64-apple-darwin;aarch64-apple-darwin" Darwin FALSE arm64 ARCHITECTURES x86_64 arm64)
check(aarch64-apple-darwin Darwin TRUE arm64)
check("" Linux FALSE x86_64 ARCHITECTURES arm64)

check(aarch64-unknown-linux-gnu Linux TRUE aarch64 COMPILER aarch64-linux-gnu-gcc)
check(aarch64-unknown-linux-gnu Linux TRUE arm64)
check(x86_64-unknown-linux-gnu Linux TRUE AMD64)
check(i686-unknown-linux-gnu Linux TRUE i586)
check(armv7-unknown-linux-gnueabihf Linux TRUE armv7l)
check(riscv64gc-unknown-linux-gnu Linux TRUE riscv64)
check(powerpc64le-unknown-linux-gnu Linux TRUE ppc64le)
check(s390x-unknown-linux-gnu Linux TRUE s390x)

function(check_failure)
  execute_process(COMMAND "${CMAKE_COMMAND}" -D "SAFEALIGN=${SAFEALIGN}" -D FAILS=TRUE ${ARGN}
      -P "${CMAKE_CURRENT_FUNCTION_LIST_FILE}"
    OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE failed)
  if(NOT failed OR NOT output MATCHES "no Rust target is known for" OR NOT output MATCHES "SAFEALIGN_CARGO_TARGET")
    message(FATAL_ERROR "with ${ARGN}: ${failed}\n${output}")
  endif()
endfunction()
check_failure(-D CMAKE_SYSTEM_NAME=Linux -D CMAKE_CROSSCOMPILING=TRUE -D CMAKE_SYSTEM_PROCESSOR=mips)
check_failure(-D CMAKE_SYSTEM_NAME=Linux -D CMAKE_CROSSCOMPILING=TRUE)
check_failure(-D CMAKE_SYSTEM_NAME=Linux -D CMAKE_CROSSCOMPILING=TRUE -D CMAKE_SYSTEM_PROCESSOR=aarch64
  -D CMAKE_C_COMPILER=/opt/bin/aarch64-linux-musl-gcc)
check_failure(-D CMAKE_SYSTEM_NAME=iOS -D CMAKE_OSX_ARCHITECTURES=arm64)
