#include "tools/inspect/report/dataset_report.h"

#include <fmt/core.h>

#include <algorithm>
#include <mutex>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/parallel_for.h"
#include "runtime/data/image/decode.h"
#include "runtime/data/image/image_writer.h"
#include "runtime/data/image/resize.h"
#include "tools/inspect/html/html_page.h"

namespace fusor::inspect {
namespace {

using nlohmann::json;

constexpr size_t kBrokenNames = 100;

// What one sample holds.
struct Facts {
  std::string error;  // empty: readable
  int32_t label = 0;
  int64_t bytes = 0;
  runtime::ImageSize size;
  std::string_view encoding;
  std::vector<uint8_t> jpeg;  // its picture, if requested
};

// Returns a picture of the image within a square of `side` pixels.
std::vector<uint8_t> PictureOf(const runtime::Image& image) {
  constexpr int kSide = 112;
  constexpr int kQuality = 75;
  const int longer = std::max(image.width, image.height);
  const auto scaled = [&](int length) {
    return std::max(1, static_cast<int>(int64_t{length} * kSide / longer));
  };
  const runtime::ImageSize size{scaled(image.width), scaled(image.height)};
  runtime::Resizer resizer;
  resizer.Plan(runtime::ResizeWhole({image.width, image.height}, size));
  runtime::Image picture;
  picture.SetSize(size.width, size.height);
  resizer.Run(image, picture.pixels.data());
  return runtime::EncodeJpeg(picture, kQuality);
}

Facts FactsOf(const runtime::ImageSet& images, int64_t index, bool picture) {
  Facts facts;
  try {
    std::vector<uint8_t> storage;
    const runtime::Sample sample = images.Read(index, storage);
    const std::string name = images.Name(index);
    const runtime::Image image = runtime::DecodeImage(sample.bytes, name);
    facts.label = sample.label;
    facts.bytes = std::ssize(sample.bytes);
    facts.size = {image.width, image.height};
    facts.encoding = runtime::ImageFormat(sample.bytes);
    if (picture) facts.jpeg = PictureOf(image);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kData) throw;
    facts.error = error.what();
  }
  return facts;
}

Spread SpreadOf(std::vector<int64_t> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  return {values.front(), values[values.size() / 2], values.back()};
}

json SpreadJson(const Spread& spread) {
  return {{"least", spread.least},
          {"median", spread.median},
          {"most", spread.most}};
}

// Returns the indices of samples for pictures: the first of each class, the
// second of each class, and so on.
std::vector<bool> ChoosePictures(const runtime::ImageSet& images, int count) {
  std::vector<bool> chosen(static_cast<size_t>(images.size()));
  const auto classes = static_cast<size_t>(images.num_classes());
  const size_t most =
      (static_cast<size_t>(count) + classes - 1) / std::max<size_t>(classes, 1);
  std::vector<size_t> taken(classes);
  for (int64_t i = 0; i < images.size() && count > 0; ++i) {
    const int32_t label = images.Label(i);
    if (label == runtime::kUnknownLabel) continue;
    if (taken[static_cast<size_t>(label)]++ >= most) continue;
    chosen[static_cast<size_t>(i)] = true;
    --count;
  }
  return chosen;
}

std::string Base64(const std::vector<uint8_t>& bytes) {
  constexpr std::string_view kDigits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string text;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    const size_t count = std::min<size_t>(3, bytes.size() - i);
    for (size_t j = 0; j < 3; ++j) {
      group = group << 8 | (j < count ? bytes[i + j] : 0U);
    }
    for (size_t j = 0; j < 4; ++j) {
      text += j <= count ? kDigits[group >> (18 - 6 * j) & 63] : '=';
    }
  }
  return text;
}

std::string Megabytes(int64_t bytes) {
  return fmt::format("{:.1f} MB", static_cast<double>(bytes) / 1e6);
}

std::string SpreadText(const Spread& spread) {
  return fmt::format("{} to {}, median {}", spread.least, spread.most,
                     spread.median);
}

// Returns smallest and largest number of images of a class.
Spread Balance(const DatasetReport& report) {
  return SpreadOf(report.class_images);
}

std::string Encodings(const DatasetReport& report) {
  std::string text;
  for (const auto& [name, count] : report.encodings) {
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, name);
  }
  return text;
}

}  // namespace

DatasetReport InspectDataset(const runtime::ImageSet& images,
                             const DatasetReportOptions& options) {
  DatasetReport report{.path = images.path(),
                       .format = std::string(images.format()),
                       .description = images.Description(),
                       .class_names = images.class_names()};
  report.class_images.resize(static_cast<size_t>(images.num_classes()));
  const std::vector<bool> chosen = ChoosePictures(images, options.pictures);
  std::vector<int64_t> widths;
  std::vector<int64_t> heights;
  std::vector<int64_t> sizes;
  // Images that are decoded at the same time.
  constexpr int64_t kPerThread = 16;
  std::vector<Facts> several;
  while (report.images < images.size()) {
    if (options.stop && options.stop()) break;
    const int64_t begin = report.images;
    several.resize(static_cast<size_t>(
        std::min(images.size() - begin, options.threads * kPerThread)));
    ParallelFor(several.size(), options.threads, [&](size_t i) {
      const int64_t index = begin + static_cast<int64_t>(i);
      several[i] = FactsOf(images, index, chosen[static_cast<size_t>(index)]);
    });
    for (Facts& facts : several) {
      const int64_t index = report.images++;
      if (!facts.error.empty()) {
        if (report.broken++ < static_cast<int64_t>(kBrokenNames)) {
          report.broken_names.push_back(std::move(facts.error));
        }
        continue;
      }
      ++report.class_images[static_cast<size_t>(facts.label)];
      ++report.encodings[std::string(facts.encoding)];
      report.bytes += facts.bytes;
      widths.push_back(facts.size.width);
      heights.push_back(facts.size.height);
      sizes.push_back(facts.bytes);
      if (facts.jpeg.empty()) continue;
      report.pictures.push_back(
          {images.Name(index), facts.label, std::move(facts.jpeg)});
    }
    if (options.progress) options.progress(report.images);
  }
  report.width = SpreadOf(std::move(widths));
  report.height = SpreadOf(std::move(heights));
  report.file_bytes = SpreadOf(std::move(sizes));
  return report;
}

std::string DatasetText(const DatasetReport& report, const std::string& name) {
  std::string text = fmt::format("{}: {} {}, {}\n", name, report.format,
                                 report.path, report.description);
  const auto line = [&](const char* what, const std::string& value) {
    text += fmt::format("  {:<10}{}\n", what, value);
  };
  const Spread balance = Balance(report);
  line("images", fmt::format("{}, {}, {}", report.images, Encodings(report),
                             Megabytes(report.bytes)));
  line("classes", fmt::format("{}, of {} images", report.class_images.size(),
                              SpreadText(balance)));
  line("width", SpreadText(report.width));
  line("height", SpreadText(report.height));
  line("bytes", SpreadText(report.file_bytes));
  line("broken", fmt::format("{}", report.broken));
  for (const std::string& broken : report.broken_names) {
    text += "    " + broken + "\n";
  }
  return text;
}

json DatasetJson(const DatasetReport& report) {
  json classes = json::array();
  for (size_t i = 0; i < report.class_images.size(); ++i) {
    classes.push_back(
        {{"class", report.class_names[i]}, {"images", report.class_images[i]}});
  }
  return {{"path", report.path},
          {"format", report.format},
          {"description", report.description},
          {"images", report.images},
          {"bytes", report.bytes},
          {"encodings", report.encodings},
          {"width", SpreadJson(report.width)},
          {"height", SpreadJson(report.height)},
          {"file_bytes", SpreadJson(report.file_bytes)},
          {"classes", std::move(classes)},
          {"broken", report.broken},
          {"broken_names", report.broken_names}};
}

std::string DatasetPage(const std::vector<DatasetReport>& reports,
                        const std::vector<std::string>& names) {
  HtmlPage page{.title = "Data set", .lead = "", .sections = {}};
  for (size_t r = 0; r < reports.size(); ++r) {
    const DatasetReport& report = reports[r];
    const Spread balance = Balance(report);
    page.lead += fmt::format("{}{}: {} {}", r == 0 ? "" : "\n", names[r],
                             report.format, report.path);
    page.sections.push_back(TileSection(
        {{names[r], fmt::format("{} images", report.images),
          fmt::format("{}, {}", Megabytes(report.bytes), Encodings(report))},
         {"classes", fmt::format("{}", report.class_images.size()),
          fmt::format("{} images", SpreadText(balance))},
         {"width", fmt::format("{}", report.width.median),
          SpreadText(report.width)},
         {"height", fmt::format("{}", report.height.median),
          SpreadText(report.height)},
         {"broken", fmt::format("{}", report.broken), "records"}}));
    if (report.broken > 0) {
      std::vector<std::vector<json>> rows;
      for (const std::string& broken : report.broken_names) {
        rows.push_back({broken});
      }
      page.sections.push_back(
          TableSection("Broken records of " + names[r],
                       fmt::format("{} in all.", report.broken), {"record"},
                       std::move(rows)));
    }
    std::vector<std::vector<json>> rows;
    for (size_t i = 0; i < report.class_images.size(); ++i) {
      rows.push_back(
          {i, report.class_names[i], report.class_images[i],
           fmt::format(
               "{:.2f} %",
               100.0 * static_cast<double>(report.class_images[i]) /
                   static_cast<double>(std::max<int64_t>(report.images, 1)))});
    }
    page.sections.push_back(TableSection("Classes of " + names[r], "",
                                         {"label", "class", "images", "share"},
                                         std::move(rows)));
    std::vector<Thumbnail> pictures;
    for (const SamplePicture& picture : report.pictures) {
      pictures.push_back(
          {report.class_names[static_cast<size_t>(picture.label)], picture.name,
           "data:image/jpeg;base64," + Base64(picture.jpeg)});
    }
    page.sections.push_back(PictureSection("Samples of " + names[r], pictures));
  }
  return Render(page);
}

}  // namespace fusor::inspect
