# Installs, and moves what was installed: nothing in it may know where it was.
cmake_minimum_required(VERSION 3.20)

file(REMOVE_RECURSE "${FIRST}" "${MOVED}")
execute_process(COMMAND "${CMAKE_COMMAND}" --install "${BUILD}" --prefix "${FIRST}" COMMAND_ERROR_IS_FATAL ANY)
file(RENAME "${FIRST}" "${MOVED}")

file(GLOB_RECURSE texts "${MOVED}/*.cmake" "${MOVED}/*.pc" "${MOVED}/*.h" "${MOVED}/*.hpp")
list(LENGTH texts count)
if(count LESS 5)
  message(FATAL_ERROR "too little was installed: ${texts}")
endif()
foreach(text IN LISTS texts)
  file(READ "${text}" content)
  string(FIND "${content}" "${FIRST}" at)
  if(NOT at EQUAL -1)
    message(FATAL_ERROR "${text} names the place that it was installed to")
  endif()
endforeach()
