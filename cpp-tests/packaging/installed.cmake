# The install tree has the library under its three names, and the licence texts.
cmake_minimum_required(VERSION 3.20)
include("${CMAKE_CURRENT_LIST_DIR}/nested.cmake")

# The expected names come from Cargo.toml, not from CMakeLists.txt.
file(STRINGS "${SAFEALIGN}/Cargo.toml" version REGEX "^version = " LIMIT_COUNT 1)
string(REGEX MATCH "([0-9]+)\\.([0-9]+)\\.[0-9]+" version "${version}")
set(abi "${CMAKE_MATCH_1}")
if(abi EQUAL 0)
  set(abi "0.${CMAKE_MATCH_2}")
endif()
set(lib "${PREFIX}/${LIBDIR}")
file(READ_SYMLINK "${lib}/libsafealign.so" link)
expect_equal("the target of libsafealign.so" "${link}" "libsafealign.so.${abi}")
file(READ_SYMLINK "${lib}/libsafealign.so.${abi}" link)
expect_equal("the target of libsafealign.so.${abi}" "${link}" "libsafealign.so.${version}")
if(IS_SYMLINK "${lib}/libsafealign.so.${version}")
  message(FATAL_ERROR "libsafealign.so.${version} is a symbolic link")
endif()
execute_process(COMMAND "${READELF}" -d "${lib}/libsafealign.so.${version}" OUTPUT_VARIABLE dynamic
  COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCH "SONAME[^\n]*\\[([^]]*)\\]" soname "${dynamic}")
expect_equal("the SONAME" "${CMAKE_MATCH_1}" "libsafealign.so.${abi}")

foreach(name LICENSE-MIT LICENSE-APACHE)
  file(SHA256 "${SAFEALIGN}/${name}" source)
  file(SHA256 "${PREFIX}/${DATADIR}/doc/safealign/${name}" installed)
  expect_equal("the hash of ${name}" "${installed}" "${source}")
endforeach()
