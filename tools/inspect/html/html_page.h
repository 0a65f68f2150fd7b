#pragma once

// Pages for people: one file each, with its style and scripts inside, that
// opens without a network. What they show is data; page*.js draw it.

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace fusor::codegen {

struct HtmlPage {
  std::string title;
  std::string lead;  // a sentence below it; may be empty
  // Sections in order, each an object with "kind" and "title" and the fields
  // that the function of that kind below makes.
  std::vector<nlohmann::json> sections;
};

// A table. `head`: column titles; cells are strings, or numbers, which stand at
// the right. Rows beyond `shown` are folded away.
nlohmann::json TableSection(std::string title, std::string note,
                            std::vector<std::string> head,
                            std::vector<std::vector<nlohmann::json>> rows,
                            size_t shown = 30);

// Bars, one group a label, one bar a series: values[label][series].
nlohmann::json BarSection(std::string title, std::string unit,
                          std::vector<std::string> series,
                          std::vector<std::string> labels,
                          std::vector<std::vector<double>> values);

// Graphs by model location and phase, several variants above each other:
// (name, GraphView).
nlohmann::json GraphSection(
    std::string title, std::string note,
    std::vector<std::pair<std::string, nlohmann::json>> variants);

// The plan's memory over its schedule, several variants over each other:
// TimelineView.
nlohmann::json MemorySection(std::string title, std::string note,
                             std::vector<nlohmann::json> variants);

// Where the buffers of one plan lie, over its schedule: TimelineView.
nlohmann::json MemoryMapSection(std::string title, std::string note,
                                nlohmann::json view);

// A few numbers that stand out: what, value, detail.
struct Tile {
  std::string what, value, detail;
};
nlohmann::json TileSection(const std::vector<Tile>& tiles);

// Deterministic: equal pages give equal bytes.
std::string Render(const HtmlPage& page);

}  // namespace fusor::codegen
