# wheel.cmake: what the Python package takes from this build: the shared library, and beside it the BLAS that
# it is linked to, so that no other BLAS of the process is touched (pyproject.toml asks for this).
#
# scipy-openblas32, a package of the Python index, is OpenBLAS with `scipy_` before every symbol.

find_package(Python REQUIRED COMPONENTS Interpreter)
# The package is not imported, because it may be that of another processor (scripts/wheel.sh).
foreach(file BLAS=libscipy_openblas*.so BLAS_LICENCE=LICENSE.txt)
  string(REGEX MATCH "(.*)=(.*)" match ${file})
  execute_process(COMMAND ${Python_EXECUTABLE} -c
                          "import fnmatch, importlib.metadata as m; d = m.distribution('scipy-openblas32')
print(next(str(d.locate_file(f)) for f in d.files if fnmatch.fnmatch(f.name, '${CMAKE_MATCH_2}')))"
                  OUTPUT_VARIABLE NATGRAD_WHEEL_${CMAKE_MATCH_1} OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE failed)
  if(failed)
    message(FATAL_ERROR "NATGRAD_WHEEL needs scipy-openblas32 of ${Python_EXECUTABLE}: pip install scipy-openblas32")
  endif()
endforeach()
set(NATGRAD_HAVE_BLAS ON)
add_compile_definitions(NG_HAVE_BLAS NG_BLAS_PREFIX=scipy_)

# Everything lies in natgrad/lib of the package and finds its neighbours there.
function(natgrad_fill_wheel)
  set_target_properties(natgrad_static natgrad PROPERTIES EXCLUDE_FROM_ALL ON)
  set_target_properties(natgrad PROPERTIES EXCLUDE_FROM_ALL OFF INSTALL_RPATH "$ORIGIN" VERSION 0 SOVERSION 0)
  install(TARGETS natgrad LIBRARY DESTINATION natgrad/lib COMPONENT wheel NAMELINK_SKIP)
  install(FILES ${NATGRAD_WHEEL_BLAS} DESTINATION natgrad/lib COMPONENT wheel)
  install(FILES ${NATGRAD_WHEEL_BLAS_LICENCE} RENAME LICENSE.openblas DESTINATION natgrad/lib COMPONENT wheel)
endfunction()
