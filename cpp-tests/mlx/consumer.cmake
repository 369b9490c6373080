# Configures, builds and runs consumer/. PREFIX has the directories of safealign and of MLX, with a bar between.

string(REPLACE "|" ";" prefix "${PREFIX}")
file(REMOVE_RECURSE "${BUILD}")
execute_process(
  COMMAND "${CMAKE_COMMAND}" -S "${SOURCE}" -B "${BUILD}" -G "${GENERATOR}" -D "CMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}"
          -D "CMAKE_BUILD_TYPE=${BUILD_TYPE}" -D "CMAKE_C_COMPILER=${CC}" -D "CMAKE_CXX_COMPILER=${CXX}"
          -D "CMAKE_PREFIX_PATH=${prefix}" -D "CONSUMER_VERSION=${VERSION}"
  COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${CMAKE_COMMAND}" --build "${BUILD}" COMMAND_ERROR_IS_FATAL ANY)
execute_process(COMMAND "${BUILD}/consumer" WORKING_DIRECTORY "${BUILD}" COMMAND_ERROR_IS_FATAL ANY)
