// What other programs call the samplers.
#pragma once

#include <string>
#include <utility>

namespace tessera::samplers {

// Splits the ending that names noise levels from a sampler's name: "dpm++-karras" into "dpm++" and "karras".
// The second is empty where there is none.
std::pair<std::string, std::string> split_levels(const std::string& name);

// Translates a sampler's name in web UIs and ComfyUI ("DPM++ 2M Karras", "dpmpp_2m_karras", "k_euler_a") into
// the one that a sampler has here, as the table of diffusers' documentation does ("Schedulers"); a name that
// means nothing there stays as it is, but for its spelling.
std::string translated_name(std::string name);

}  // namespace tessera::samplers
