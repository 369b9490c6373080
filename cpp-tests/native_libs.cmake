# The libraries that CMakeLists.txt names are those that rustc asks for.
cmake_minimum_required(VERSION 3.20)

unset(ENV{CARGO_BUILD_TARGET})
set(ENV{RUSTC} "${RUSTC}")
execute_process(
  COMMAND "${CARGO}" rustc --locked --lib --crate-type staticlib --release --manifest-path "${MANIFEST}"
          --target-dir "${TARGET_DIR}" -- --print native-static-libs
  ERROR_VARIABLE said RESULT_VARIABLE failed)
if(failed OR NOT said MATCHES "native-static-libs: ([^\n]*)")
  message(FATAL_ERROR "cargo rustc said:\n${said}")
endif()
string(STRIP "${CMAKE_MATCH_1}" found)
if(NOT found STREQUAL EXPECTED)
  message(FATAL_ERROR "SAFEALIGN_NATIVE_LIBS is\n    ${EXPECTED}\nand rustc asks for\n    ${found}")
endif()
