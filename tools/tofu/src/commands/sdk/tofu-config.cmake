# find_package(tofu) with CMAKE_PREFIX_PATH naming the SDK: the targets tofu::utofu, tofu::jtofu,
# tofu::tnw and tofu::hwb.
get_filename_component(_tofu "${CMAKE_CURRENT_LIST_DIR}/../../.." ABSOLUTE)
foreach(_pair utofu:tofucom jtofu:tofutop tnw:tnw hwb:FJhwb)
  string(REPLACE ":" ";" _pair "${_pair}")
  list(GET _pair 0 _name)
  list(GET _pair 1 _file)
  if(NOT TARGET tofu::${_name})
    add_library(tofu::${_name} SHARED IMPORTED)
    set_target_properties(tofu::${_name} PROPERTIES
      IMPORTED_LOCATION "${_tofu}/lib/lib${_file}.so"
      IMPORTED_SONAME "lib${_file}.so"
      INTERFACE_INCLUDE_DIRECTORIES "${_tofu}/include")
  endif()
endforeach()
unset(_tofu)
