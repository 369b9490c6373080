# MLX, and what safealign has for it:
#
#   safealign::mlx            safealign_mlx.hpp for programs that link MLX
#   safealign_mlx_interpose   the library that takes the place of MLX's own functions by LD_PRELOAD
#
# MLX is the target `mlx` of the project that this is part of, or what find_package(MLX) finds: MLX_ROOT names the
# directory of an installation, such as that of a Python package, and SAFEALIGN_PYTHON a Python whose MLX is used. As
# part of another project, MLX is searched for only if one of them is set: a fork of MLX has yet to define `mlx`.

option(SAFEALIGN_MLX_INTERPOSE "Build the library that puts safealign in front of an unmodified MLX" OFF)
set(SAFEALIGN_PYTHON_OLD "" CACHE STRING "A Python with the older MLX that the tests cover, with safetensors and numpy")

# The directory of a Python's MLX, which has include/ and lib/.
function(safealign_mlx_of_python out python)
  execute_process(
    COMMAND "${python}" -c "import mlx.core, os; print(os.path.dirname(os.path.realpath(mlx.core.__file__)))"
    OUTPUT_VARIABLE root OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "safealign: ${python} cannot import mlx.core")
  endif()
  set(${out} "${root}" PARENT_SCOPE)
endfunction()

# The Python packages keep what MLX itself links in a directory of their own, where a program finds it by MLX's own
# path, and the linker does not always.
function(safealign_mlx_link_options target root)
  if(EXISTS "${root}/../mlx_cpu.libs")
    target_link_options(${target} INTERFACE "LINKER:-rpath-link,${root}/../mlx_cpu.libs")
  endif()
endfunction()

# The interposer for the MLX whose headers are in include_dir. It links no MLX: see its source.
function(safealign_add_mlx_interpose name include_dir)
  set(source "${PROJECT_SOURCE_DIR}/interpose")
  add_library(${name} MODULE "${source}/safealign_mlx_interpose.cpp")
  target_include_directories(${name} SYSTEM PRIVATE "${include_dir}")
  target_link_libraries(${name} PRIVATE safealign::safealign-static)
  # Lazy, since it is loaded before MLX is.
  target_link_options(${name} PRIVATE -Wl,-z,lazy "-Wl,--version-script=${source}/interpose.map")
  set_target_properties(${name} PROPERTIES
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF
    CXX_VISIBILITY_PRESET hidden VISIBILITY_INLINES_HIDDEN ON NO_SYSTEM_FROM_IMPORTED ON
    LINK_DEPENDS "${source}/interpose.map")
endfunction()

if(NOT TARGET mlx AND (safealign_top_level OR MLX_ROOT OR MLX_DIR OR SAFEALIGN_PYTHON))
  if(NOT MLX_ROOT AND SAFEALIGN_PYTHON)
    safealign_mlx_of_python(MLX_ROOT "${SAFEALIGN_PYTHON}")
  endif()
  find_package(MLX CONFIG QUIET)
  if(TARGET mlx)
    # Seen from the folders above too, which an imported target otherwise is not.
    set_target_properties(mlx PROPERTIES IMPORTED_GLOBAL TRUE)
    get_target_property(safealign_mlx_include mlx INTERFACE_INCLUDE_DIRECTORIES)
    list(GET safealign_mlx_include 0 safealign_mlx_include)
    safealign_mlx_link_options(mlx "${safealign_mlx_include}/..")
  endif()
endif()

if(TARGET mlx)
  add_library(safealign::mlx INTERFACE IMPORTED GLOBAL)
  target_compile_features(safealign::mlx INTERFACE cxx_std_20)
  target_link_libraries(safealign::mlx INTERFACE safealign::safealign mlx)
endif()

if(SAFEALIGN_MLX_INTERPOSE)
  if(NOT CMAKE_SYSTEM_NAME STREQUAL "Linux")
    message(FATAL_ERROR "safealign: SAFEALIGN_MLX_INTERPOSE needs Linux")
  elseif(NOT TARGET mlx)
    message(FATAL_ERROR "safealign: SAFEALIGN_MLX_INTERPOSE needs MLX; set MLX_ROOT or SAFEALIGN_PYTHON")
  endif()
  safealign_add_mlx_interpose(safealign_mlx_interpose "$<TARGET_PROPERTY:mlx,INTERFACE_INCLUDE_DIRECTORIES>")
  set_target_properties(safealign_mlx_interpose PROPERTIES LIBRARY_OUTPUT_DIRECTORY "${safealign_lib_dir}")
  if(SAFEALIGN_INSTALL)
    install(TARGETS safealign_mlx_interpose LIBRARY DESTINATION "${CMAKE_INSTALL_LIBDIR}")
  endif()
endif()
