# Included by the other scripts: configures and builds a project with the generator and the compilers of this build.

# nested_configure(SOURCE BUILD ARGUMENTS...): the result is in the variables failed and output.
macro(nested_configure source build)
  file(REMOVE_RECURSE "${build}")
  execute_process(
    COMMAND "${CMAKE_COMMAND}" -S "${source}" -B "${build}" -G "${GENERATOR}" -D "CMAKE_MAKE_PROGRAM=${MAKE_PROGRAM}"
            -D "CMAKE_C_COMPILER=${CC}" -D "CMAKE_CXX_COMPILER=${CXX}" -D "CMAKE_BUILD_TYPE=Release" ${ARGN}
    OUTPUT_VARIABLE output ERROR_VARIABLE output RESULT_VARIABLE failed)
endmacro()

macro(nested_configure_or_fail)
  nested_configure(${ARGN})
  if(failed)
    message(FATAL_ERROR "configuring failed:\n${output}")
  endif()
endmacro()

function(nested_build build)
  execute_process(COMMAND "${CMAKE_COMMAND}" --build "${build}" ${ARGN} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

# nested_cached(OUT BUILD NAME): a variable of a cache.
function(nested_cached out build name)
  file(STRINGS "${build}/CMakeCache.txt" line REGEX "^${name}:")
  string(REGEX REPLACE "^[^=]*=" "" value "${line}")
  set(${out} "${value}" PARENT_SCOPE)
endfunction()

function(expect_equal what found expected)
  if(NOT found STREQUAL expected)
    message(FATAL_ERROR "${what} is '${found}', expected '${expected}'")
  endif()
endfunction()

# fake_tool(PATH VERSION): a Rust tool that answers --version. A cargo that builds writes the target into each library,
# and keeps its arguments and its environment in files beside itself.
function(fake_tool path version)
  get_filename_component(name "${path}" NAME)
  get_filename_component(dir "${path}" DIRECTORY)
  file(MAKE_DIRECTORY "${dir}")
  file(WRITE "${path}" "#!/bin/sh
if [ \"$1\" = --version ]; then
    echo '${name} ${version} (0123456789 2020-01-01)'
    exit
fi
echo \"$*\" >'${dir}/arguments'
env >'${dir}/environment'
targets=.
while [ $# -gt 0 ]; do
    if [ \"$1\" = --target ]; then
        targets=\"\${targets#.} $2\"
    fi
    shift
done
for target in $targets; do
    mkdir -p \"$CARGO_TARGET_DIR/$target/release\"
    for library in so dylib a; do
        echo \"$target\" >\"$CARGO_TARGET_DIR/$target/release/libsafealign.$library\"
    done
done
")
  file(CHMOD "${path}" PERMISSIONS OWNER_READ OWNER_WRITE OWNER_EXECUTE)
endfunction()
