# Builds and runs what the README shows, unchanged: the project of readme/ with the example as its main.cpp.

file(REMOVE_RECURSE "${BUILD}")
file(MAKE_DIRECTORY "${BUILD}")
configure_file("${SAFEALIGN}/cpp-tests/readme/CMakeLists.txt" "${BUILD}/CMakeLists.txt" COPYONLY)
configure_file("${SAFEALIGN}/examples/save_and_load.cpp" "${BUILD}/main.cpp" COPYONLY)
file(CREATE_LINK "${SAFEALIGN}" "${BUILD}/safealign" SYMBOLIC)
execute_process(
  COMMAND "${CMAKE_COMMAND}" -S "${BUILD}" -B "${BUILD}/build" -G "${GENERATOR}" -D "CMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}"
          -D "CMAKE_C_COMPILER=${CC}" -D "CMAKE_CXX_COMPILER=${CXX}" -D "SAFEALIGN_CARGO_TARGET_DIR=${CARGO_TARGET_DIR}"
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${BUILD}/build" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${BUILD}/build/app" WORKING_DIRECTORY "${BUILD}" COMMAND_ERROR_IS_FATAL ANY)
