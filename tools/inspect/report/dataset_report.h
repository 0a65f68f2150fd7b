#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/data/datasets/image_set.h"

namespace fusor::inspect {

// A small picture of a sample.
struct SamplePicture {
  std::string name;
  int32_t label = 0;
  std::vector<uint8_t> jpeg;
};

// Smallest, middle and largest value.
struct Spread {
  int64_t least = 0;
  int64_t median = 0;
  int64_t most = 0;
};

// What a data set holds. Every image is decoded.
struct DatasetReport {
  std::string path;
  std::string format;
  std::string description;  // see ImageSet::Description
  int64_t images = 0;
  int64_t broken = 0;
  std::vector<std::string> broken_names;  // why, one line for the first ones
  std::vector<std::string> class_names;
  std::vector<int64_t> class_images;         // readable ones of each class
  std::map<std::string, int64_t> encodings;  // "JPEG" and so on
  int64_t bytes = 0;
  Spread width;
  Spread height;
  Spread file_bytes;
  std::vector<SamplePicture> pictures;  // spread over the classes
};

struct DatasetReportOptions {
  int threads = 1;
  int pictures = 0;
  // Called after some images, with their number so far.
  std::function<void(int64_t images)> progress{};
  // Asked between images: ends the inspection if it returns true.
  std::function<bool()> stop{};
};

// Reads all samples of a set.
DatasetReport InspectDataset(const runtime::ImageSet& images,
                             const DatasetReportOptions& options);

// Return the reports as lines, as JSON and as a page with a contact sheet.
// `names`: of each report's split, such as "train".
std::string DatasetText(const DatasetReport& report, const std::string& name);
nlohmann::json DatasetJson(const DatasetReport& report);
std::string DatasetPage(const std::vector<DatasetReport>& reports,
                        const std::vector<std::string>& names);

}  // namespace fusor::inspect
