#include "models/stdit/sizes.h"

#include <algorithm>
#include <array>

#include "core/error.h"

namespace tessera::models {
namespace {

constexpr size_t kRatios = 17;

// Aspect ratios are height to width.
const std::array<std::string, kRatios> kAspectRatios = {"3:8",  "9:21", "12:25", "1:2", "9:17", "27:50",
                                                        "9:16", "5:8",  "2:3",   "3:4", "1:1",  "4:3",
                                                        "3:2",  "16:9", "17:9",  "2:1", "50:27"};

struct Row {
  std::string resolution;
  std::array<VideoSize, kRatios> sizes;  // by aspect ratio
};

// These are the sizes that the published models were trained on. They do not follow a formula.
// clang-format off
const std::array<Row, 8> kRows = {{
    {"144p", {{{117, 312}, {125, 291}, {133, 277}, {135, 270}, {139, 262}, {141, 260}, {144, 256},
      {151, 241}, {156, 234}, {166, 221}, {192, 192}, {221, 165}, {235, 156}, {256, 144}, {263, 139},
      {271, 135}, {277, 132}}}},
    {"240p", {{{196, 522}, {210, 490}, {222, 462}, {226, 452}, {232, 438}, {236, 436}, {240, 426},
      {252, 404}, {262, 393}, {276, 368}, {320, 320}, {370, 278}, {392, 262}, {426, 240}, {440, 232},
      {452, 226}, {462, 222}}}},
    {"360p", {{{294, 784}, {314, 732}, {332, 692}, {340, 680}, {350, 662}, {352, 652}, {360, 640},
      {380, 608}, {392, 588}, {416, 554}, {480, 480}, {554, 416}, {588, 392}, {640, 360}, {660, 350},
      {678, 340}, {692, 332}}}},
    {"480p", {{{392, 1046}, {420, 980}, {444, 925}, {452, 904}, {466, 880}, {470, 870}, {480, 854},
      {506, 810}, {522, 784}, {554, 738}, {640, 640}, {740, 555}, {784, 522}, {854, 480}, {880, 466},
      {906, 454}, {924, 444}}}},
    {"720p", {{{588, 1568}, {628, 1466}, {666, 1388}, {678, 1356}, {698, 1318}, {706, 1306}, {720, 1280},
      {758, 1212}, {784, 1176}, {832, 1110}, {960, 960}, {1108, 832}, {1176, 784}, {1280, 720}, {1320, 698},
      {1358, 680}, {1386, 666}}}},
    {"1080p", {{{882, 2352}, {942, 2198}, {998, 2080}, {1018, 2036}, {1048, 1980}, {1058, 1958},
      {1080, 1920}, {1138, 1820}, {1176, 1764}, {1248, 1664}, {1440, 1440}, {1662, 1246}, {1764, 1176},
      {1920, 1080}, {1980, 1048}, {2036, 1018}, {2078, 998}}}},
    {"2k", {{{1176, 3136}, {1256, 2930}, {1330, 2770}, {1358, 2716}, {1398, 2640}, {1412, 2612},
      {1440, 2560}, {1518, 2428}, {1568, 2352}, {1662, 2216}, {1920, 1920}, {2218, 1664}, {2352, 1568},
      {2560, 1440}, {2638, 1396}, {2716, 1358}, {2772, 1330}}}},
    {"4k", {{{1764, 4704}, {1886, 4400}, {1996, 4158}, {2036, 4072}, {2096, 3960}, {2118, 3918},
      {2160, 3840}, {2276, 3642}, {2352, 3528}, {2494, 3326}, {2880, 2880}, {3326, 2494}, {3528, 2352},
      {3840, 2160}, {3958, 2096}, {4072, 2036}, {4156, 1994}}}}}};
// clang-format on

}  // namespace

std::vector<std::string> video_resolutions() {
  std::vector<std::string> names;
  names.reserve(kRows.size());
  for (const Row& row : kRows) names.push_back(row.resolution);
  return names;
}

std::vector<std::string> video_aspect_ratios() {
  return {kAspectRatios.begin(), kAspectRatios.end()};
}

VideoSize video_size(const std::string& resolution, const std::string& aspect_ratio) {
  const auto* const row = std::find_if(kRows.begin(), kRows.end(),
                                       [&](const Row& each) { return each.resolution == resolution; });
  const auto* const ratio = std::find(kAspectRatios.begin(), kAspectRatios.end(), aspect_ratio);
  TESSERA_CHECK(row != kRows.end() && ratio != kAspectRatios.end(), "no size '{}', '{}'", resolution,
                aspect_ratio);
  return row->sizes[static_cast<size_t>(ratio - kAspectRatios.begin())];
}

bool is_video_size(const VideoSize& size) {
  return std::any_of(kRows.begin(), kRows.end(), [&](const Row& row) {
    return std::find(row.sizes.begin(), row.sizes.end(), size) != row.sizes.end();
  });
}

}  // namespace tessera::models
