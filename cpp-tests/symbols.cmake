# The shared library has its name, and exports the functions of the header and nothing else.
cmake_minimum_required(VERSION 3.20)

execute_process(COMMAND "${READELF}" -d "${LIBRARY}" OUTPUT_VARIABLE dynamic COMMAND_ERROR_IS_FATAL ANY)
if(NOT dynamic MATCHES "SONAME[^\n]*\\[([^]]*)\\]" OR NOT CMAKE_MATCH_1 STREQUAL SONAME)
  message(FATAL_ERROR "SONAME is '${CMAKE_MATCH_1}', expected '${SONAME}'")
endif()

execute_process(COMMAND "${NM}" -D --defined-only "${LIBRARY}" OUTPUT_VARIABLE symbols COMMAND_ERROR_IS_FATAL ANY)
string(REGEX MATCHALL "[^ \n]+\n" exported "${symbols}")
string(REPLACE "\n" "" exported "${exported}")
list(SORT exported)

# Declarations start in the first column; comments do not.
file(STRINGS "${HEADER}" lines REGEX "^[a-z].*[ *]sa_[a-z0-9_]+\\(")
foreach(line IN LISTS lines)
  if(NOT line MATCHES "^typedef" AND line MATCHES "(sa_[a-z0-9_]+)\\(")
    list(APPEND declared "${CMAKE_MATCH_1}")
  endif()
endforeach()
list(SORT declared)

list(LENGTH declared count)
if(count LESS 30)
  message(FATAL_ERROR "only ${count} functions were found in the header: ${declared}")
endif()
if(NOT exported STREQUAL declared)
  set(missing ${declared})
  list(REMOVE_ITEM missing ${exported})
  set(extra ${exported})
  list(REMOVE_ITEM extra ${declared})
  message(FATAL_ERROR "declared and not exported: ${missing}\nexported and not declared: ${extra}")
endif()
message(STATUS "${count} functions, ${SONAME}")
