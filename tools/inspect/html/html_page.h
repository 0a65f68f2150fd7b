#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace fusor::inspect {

// HTML reports, each one self-contained file with style, scripts and data.
// Works without a network. page*.js render the data.

// Return page.css and the page*.js of this folder, embedded by the build.
std::string_view PageStyle();
std::span<const std::string_view> PageScripts();  // in order of loading

struct HtmlPage {
  std::string title;
  std::string lead;  // a sentence below the title; may be empty
  // Sections in order. Each is an object with "kind", "title" and the fields of
  // the function below that creates that kind.
  std::vector<nlohmann::json> sections;
};

// Returns a table. `head`: column titles. Cells are strings, or numbers, which
// are right-aligned. Rows beyond `shown` are collapsed.
nlohmann::json TableSection(std::string title, std::string note,
                            std::vector<std::string> head,
                            std::vector<std::vector<nlohmann::json>> rows,
                            size_t shown = 30);

// Returns a bar chart: one group per label, one bar per series,
// values[label][series].
nlohmann::json BarSection(std::string title, std::string unit,
                          std::vector<std::string> series,
                          std::vector<std::string> labels,
                          std::vector<std::vector<double>> values);

// Returns stacked graphs by model location and phase, of (name, GraphView).
nlohmann::json GraphSection(
    std::string title, std::string note,
    std::vector<std::pair<std::string, nlohmann::json>> variants);

// Returns a chart of the plans' memory over their schedules, of TimelineView.
nlohmann::json MemorySection(std::string title, std::string note,
                             std::vector<nlohmann::json> variants);

// Returns a plan's buffer offsets over its schedule, of TimelineView.
nlohmann::json MemoryMapSection(std::string title, std::string note,
                                nlohmann::json view);

// A key number.
struct Tile {
  std::string what, value, detail;
};
nlohmann::json TileSection(const std::vector<Tile>& tiles);

// Returns the page as HTML. Equal pages give equal bytes.
std::string Render(const HtmlPage& page);

}  // namespace fusor::inspect
