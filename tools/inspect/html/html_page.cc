#include "tools/inspect/html/html_page.h"

#include <fmt/core.h>

#include <utility>

namespace fusor::inspect {

namespace {

using nlohmann::json;

// Serialises JSON for a script element: escapes the '<' of "</script>".
std::string Embed(const json& value) {
  const std::string text =
      value.dump(-1, ' ', true, json::error_handler_t::replace);
  std::string out;
  for (const char c : text) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

}  // namespace

json TableSection(std::string title, std::string note,
                  std::vector<std::string> head,
                  std::vector<std::vector<json>> rows, size_t shown) {
  return {{"kind", "table"},         {"title", std::move(title)},
          {"note", std::move(note)}, {"head", std::move(head)},
          {"rows", std::move(rows)}, {"shown", shown}};
}

json GroupSection(std::string title, std::string note,
                  std::vector<std::string> head, std::string unit,
                  std::vector<std::string> series,
                  std::vector<RowGroup> groups) {
  json list = json::array();
  for (RowGroup& group : groups) {
    list.push_back({{"cells", std::move(group.cells)},
                    {"bar", std::move(group.bar)},
                    {"sections", std::move(group.sections)}});
  }
  return {{"kind", "groups"},         {"title", std::move(title)},
          {"note", std::move(note)},  {"head", std::move(head)},
          {"unit", std::move(unit)},  {"series", std::move(series)},
          {"groups", std::move(list)}};
}

json BarSection(std::string title, std::string unit,
                std::vector<std::string> series,
                std::vector<std::string> labels,
                std::vector<std::vector<double>> values) {
  return {{"kind", "bars"},
          {"title", std::move(title)},
          {"unit", std::move(unit)},
          {"series", std::move(series)},
          {"labels", std::move(labels)},
          {"values", std::move(values)}};
}

json GraphSection(std::string title, std::string note,
                  std::vector<std::pair<std::string, json>> variants) {
  json list = json::array();
  for (auto& [name, graph] : variants) {
    list.push_back({{"name", std::move(name)}, {"graph", std::move(graph)}});
  }
  return {{"kind", "graph"},
          {"title", std::move(title)},
          {"note", std::move(note)},
          {"variants", std::move(list)}};
}

json MemorySection(std::string title, std::string note,
                   std::vector<json> variants) {
  return {{"kind", "memory"},
          {"title", std::move(title)},
          {"note", std::move(note)},
          {"variants", std::move(variants)}};
}

json MemoryMapSection(std::string title, std::string note, json view) {
  return {{"kind", "memory_map"},
          {"title", std::move(title)},
          {"note", std::move(note)},
          {"view", std::move(view)}};
}

json PictureSection(std::string title, const std::vector<Thumbnail>& pictures) {
  json list = json::array();
  for (const Thumbnail& picture : pictures) {
    list.push_back({{"caption", picture.caption},
                    {"detail", picture.detail},
                    {"source", picture.source}});
  }
  return {{"kind", "pictures"},
          {"title", std::move(title)},
          {"pictures", std::move(list)}};
}

json TileSection(const std::vector<Tile>& tiles) {
  json list = json::array();
  for (const Tile& tile : tiles) {
    list.push_back(
        {{"what", tile.what}, {"value", tile.value}, {"detail", tile.detail}});
  }
  return {{"kind", "tiles"}, {"title", ""}, {"tiles", std::move(list)}};
}

std::string Render(const HtmlPage& page) {
  const json data = {
      {"title", page.title}, {"lead", page.lead}, {"sections", page.sections}};
  std::string out = "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n";
  out += "<meta charset=\"utf-8\">\n";
  out += fmt::format("<title>{}</title>\n", EscapeMarkup(page.title));
  out += fmt::format("<style>\n{}</style>\n</head>\n<body>\n", PageStyle());
  out += "<noscript>This page needs JavaScript.</noscript>\n";
  out +=
      fmt::format("<script type=\"application/json\" id=\"data\">{}</script>\n",
                  Embed(data));
  for (const std::string_view script : PageScripts()) {
    out += fmt::format("<script>\n{}</script>\n", script);
  }
  return out + "</body>\n</html>\n";
}

}  // namespace fusor::inspect
