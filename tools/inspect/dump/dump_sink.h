#pragma once

#include <iosfwd>
#include <string>
#include <string_view>

namespace fusor::inspect {

// Receives dumped files.
class DumpSink {
 public:
  virtual ~DumpSink();
  // `path`: relative, '/' between FileNames. Called once per path.
  virtual void Write(const std::string& path, std::string_view bytes) = 0;
};

// Writes to a folder, which is created if necessary. Each file is written under
// a temporary name, then renamed. Throws kUsage on write errors. The
// constructor throws kUsage if the folder is not writable or already holds a
// dump, because two dumps in one folder would mix.
class FolderSink : public DumpSink {
 public:
  explicit FolderSink(std::string folder);
  void Write(const std::string& path, std::string_view bytes) override;

 private:
  const std::string folder_;
};

// Writes all files to a stream, which must outlive this. Each file follows a
// line "// path", with `prefix` before the path.
class StreamSink : public DumpSink {
 public:
  explicit StreamSink(std::ostream& stream, std::string prefix = "")
      : stream_(stream), prefix_(std::move(prefix)) {}
  void Write(const std::string& path, std::string_view bytes) override;

 private:
  std::ostream& stream_;
  const std::string prefix_;
};

// Returns the name with '_' in place of characters other than letters, digits,
// '.', '_' and '-'. Shortens a long name and appends a hash of the whole, so
// that it stays unique and numbers and suffixes fit into the 255 bytes of a
// file name.
std::string FileName(std::string_view name);

}  // namespace fusor::inspect
