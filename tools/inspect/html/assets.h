#pragma once

#include <span>
#include <string_view>

namespace fusor::codegen {

// Return page.css and the page*.js of this folder, embedded by the build.
std::string_view PageStyle();
std::span<const std::string_view> PageScripts();  // in order of loading

}  // namespace fusor::codegen
