#include "tools/fusor/setup/rank_run.h"

#include <fmt/core.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <string_view>
#include <thread>
#include <utility>

#include "ir/support/environment.h"
#include "ir/support/error.h"
#include "ir/support/file.h"
#include "ir/support/hash.h"
#include "ir/support/str.h"
#include "ir/target/target.h"
#include "runtime/backend/backend_loader.h"
#include "runtime/distributed/counted_communicator.h"
#include "runtime/distributed/socket.h"
#include "runtime/program.h"
#include "runtime/state_store.h"
#include "tools/fusor/flags/parsing.h"
#include "tools/fusor/setup/compile_setup.h"

namespace fusor::tools {
namespace {

// Allows for different compile times of the ranks.
constexpr std::chrono::milliseconds kCompileTime{30 * 60'000};

// Time by which the monitor may learn of a failure later than a collective: a
// heartbeat, plus the failed rank's message.
constexpr std::chrono::milliseconds kMonitorDelay{4'000};
constexpr std::chrono::milliseconds kFlushTime{300};

std::string HostName() {
  char name[256] = {};
  return gethostname(name, sizeof(name) - 1) == 0 ? name : "?";
}

std::string Hash(std::string_view text) {
  return fmt::format("{:016x}", HashBytes(text));
}

// Flushes all streams. Gives up on a file that hangs.
void FlushAll() {
  const auto done = std::make_shared<std::promise<void>>();
  std::thread([done] {
    std::fflush(nullptr);
    done->set_value();
  }).detach();
  done->get_future().wait_for(kFlushTime);
}

// Called on the monitor's thread; this rank's main thread may be anywhere.
[[noreturn]] void EndBecause(int rank, const std::string& why) {
  FlushAll();
  fmt::print(stderr, "fusor: {}; rank {} exits. Restart with --resume auto\n",
             why, rank);
  std::_Exit(static_cast<int>(ErrorCode::kPeerLost));
}

// Returns e.g. "0-3, 6".
std::string Ranges(const std::vector<int>& numbers) {
  std::string text;
  for (size_t i = 0; i < numbers.size();) {
    size_t last = i;
    while (last + 1 < numbers.size() &&
           numbers[last + 1] == numbers[last] + 1) {
      ++last;
    }
    text += fmt::format("{}{}", text.empty() ? "" : ", ", numbers[i]);
    if (last > i) text += fmt::format("-{}", numbers[last]);
    i = last + 1;
  }
  return text;
}

// Returns sizes and offsets of all bucket members.
std::string BucketsText(const codegen::Plan& plan) {
  std::string text;
  for (const codegen::Step& step : plan.steps) {
    if (step.kind != codegen::StepKind::kCollective) continue;
    for (int b : step.args) {
      const codegen::Buffer& buffer = plan.buffers[b];
      text += fmt::format("{} {} {} {},", buffer.name, buffer.offset,
                          buffer.bytes, ir::DTypeName(buffer.type.dtype));
    }
    text += ";";
  }
  return text;
}

using Facts = std::vector<std::pair<std::string, std::string>>;

// Returns one "name=hash" per line.
std::string FactsText(const Facts& facts) {
  return Join(facts, "\n",
              [](const auto& fact) { return fact.first + "=" + fact.second; });
}

std::set<std::string> Lines(const std::string& text) {
  std::set<std::string> lines;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find('\n', at), text.size());
    lines.insert(text.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

// Returns "--lr: 0.1 on rank 0, 0.2 on ranks 1-3" per differing setting.
std::vector<std::string> DifferingSettings(
    const std::vector<std::map<std::string, std::string>>& ranks) {
  std::set<std::string> names;
  for (const auto& settings : ranks) {
    for (const auto& [name, value] : settings) names.insert(name);
  }
  std::vector<std::string> lines;
  for (const std::string& name : names) {
    std::vector<std::pair<std::string, std::vector<int>>> values;
    for (size_t r = 0; r < ranks.size(); ++r) {
      const auto found = ranks[r].find(name);
      const std::string value = found == ranks[r].end() || found->second.empty()
                                    ? "the default"
                                    : found->second;
      auto same = std::find_if(values.begin(), values.end(),
                               [&](const auto& v) { return v.first == value; });
      if (same == values.end()) same = values.insert(same, {value, {}});
      same->second.push_back(static_cast<int>(r));
    }
    if (values.size() == 1) continue;
    lines.push_back(name + ": " + Join(values, ", ", [](const auto& v) {
                      return fmt::format("{} on rank{} {}", v.first,
                                         v.second.size() > 1 ? "s" : "",
                                         Ranges(v.second));
                    }));
  }
  return lines;
}

// Returns what ranks must have in common for these settings to be equal, e.g.
// "command and images".
std::string Sources(const std::vector<std::string>& settings) {
  std::set<std::string> sources;
  for (const std::string& line : settings) {
    const bool flag = line.starts_with("--") || line.starts_with("DATA");
    sources.insert(flag                         ? "command"
                   : line.starts_with("fusor:") ? "fusor"
                                                : "images");
  }
  return Join(sources, " and ", [](const auto& source) { return source; });
}

}  // namespace

RankRun::RankRun(const RankFlags& flags)
    : RankRun(flags, runtime::FindRankEnvironment(LauncherVariable)) {}

RankRun::RankRun(const RankFlags& flags, runtime::RankEnvironment place)
    : flags_(flags), place_(std::move(place)) {}

RankRun::~RankRun() = default;

std::chrono::milliseconds RankRun::timeout() const {
  return std::chrono::milliseconds(static_cast<int64_t>(flags_.timeout * 1e3));
}

void RankRun::Connect(const std::string& backend, FILE* text) {
  if (world_size() == 1) return;
  store_ = std::make_unique<runtime::TcpStore>(
      runtime::StoreOptions{.host = place_.host,
                            .port = place_.port,
                            .more_ports = place_.more_ports,
                            .token = place_.token,
                            .rank = place_.rank,
                            .world_size = place_.world_size,
                            .timeout = timeout()});
  monitor_ = std::make_unique<runtime::RankMonitor>(
      *store_, runtime::RankMonitorOptions{
                   .timeout = timeout(),
                   .host = HostName(),
                   .lost = [rank = rank()](const std::string& why) {
                     EndBecause(rank, why);
                   }});
  communicator_ = runtime::CountCollectives(
      runtime::LoadBackend(backend).Connect(
          *store_,
          {.timeout = timeout(),
           .deterministic = flags_.deterministic,
           .interface = flags_.interface,
           .hangs = [rank = rank()](
                        const std::string& why) { EndBecause(rank, why); }}),
      [this] { monitor_->BeganCollective(); });
  fmt::print(text, "ranks     {} by {}: {}; {}, rank 0 at {}\n", world_size(),
             place_.launcher, Hosts(), communicator_->description(),
             store_->server());
  std::fflush(text);
}

int RankRun::Threads(int asked) const {
  if (place_.local_size == 1) return asked;
  const auto cores = static_cast<int>(std::thread::hardware_concurrency());
  const int share =
      std::clamp(cores / place_.local_size, 1, ir::DefaultCpuTarget().threads);
  // A spinning thread could block the one that it waits for.
  if (asked > share) SetUnlessSet("OMP_WAIT_POLICY", "passive");
  return asked != 0 ? asked : share;
}

void RankRun::Run(const std::function<void()>& work) {
  try {
    work();
  } catch (const std::exception& error) {
    Fail(error);
    throw;
  }
  if (monitor_ != nullptr) monitor_->Leave();
}

void RankRun::Fail(const std::exception& error) {
  if (monitor_ == nullptr) return;
  const Error known = ToError(error);
  if (known.code() == ErrorCode::kPeerLost) {
    std::this_thread::sleep_for(kMonitorDelay);
  }
  monitor_->Fail(known.what());
}

// Returns e.g. "0-3 on a, 4-7 on b".
std::string RankRun::Hosts() {
  const auto names = store_->Gather("host", HostName(), timeout());
  std::vector<std::pair<std::string, std::vector<int>>> hosts;
  for (int r = 0; r < world_size(); ++r) {
    auto host = std::find_if(hosts.begin(), hosts.end(), [&](const auto& h) {
      return h.first == names[r];
    });
    if (host == hosts.end()) host = hosts.insert(host, {names[r], {}});
    host->second.push_back(r);
  }
  return Join(hosts, ", ", [](const auto& host) {
    return Ranges(host.second) + " on " + host.first;
  });
}

void RankRun::SetOptions(codegen::CompileOptions& options) const {
  SetRankOptions(flags_, world_size(), place_.local_size, options.passes);
}

// Names the ranks whose value differs from rank 0's; empty if none does.
std::string RankRun::Unlike(const std::vector<std::string>& values) const {
  std::vector<int> unlike;
  for (int r = 1; r < world_size(); ++r) {
    if (values[r] != values[0]) unlike.push_back(r);
  }
  if (unlike.empty()) return "";
  return fmt::format("rank{} {} differ{} from rank 0",
                     unlike.size() > 1 ? "s" : "", Ranges(unlike),
                     unlike.size() > 1 ? "" : "s");
}

void RankRun::CompareSettings(std::map<std::string, std::string> settings) {
  if (world_size() == 1) return;
  settings["fusor"] = FUSOR_VERSION " build " + std::string(runtime::BuildId());
  const std::string text = nlohmann::json(settings).dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
  std::vector<std::map<std::string, std::string>> all;
  for (const std::string& other : store_->Gather("settings", text, timeout())) {
    all.push_back(nlohmann::json::parse(other));
  }
  const std::vector<std::string> differing = DifferingSettings(all);
  FUSOR_CHECK(differing.empty(), kGraph,
              "settings differ between ranks: {}: expected the same {} on all "
              "ranks",
              Join(differing, "; ", [](const auto& line) { return line; }),
              Sources(differing));
}

void RankRun::Agree(const runtime::Session& session) {
  const runtime::Session* one = &session;
  Agree({&one, 1});
}

void RankRun::Agree(std::span<const runtime::Session* const> sessions) {
  if (world_size() == 1) return;
  const codegen::TargetCompiler& compiler = sessions[0]->compiler();
  Facts facts = {
      {"version", FUSOR_VERSION " " + std::string(runtime::BuildId())},
      {"libraries",
       compiler.LibraryVersion() + "; " + compiler.CodegenVersion()}};
  for (const runtime::Session* session : sessions) {
    for (const auto& program : session->programs()) {
      const codegen::Plan& plan = program->plan();
      facts.emplace_back("buckets of " + plan.name, Hash(BucketsText(plan)));
      facts.emplace_back("plan of " + plan.name, Hash(Print(plan)));
    }
  }
  const auto all = store_->Gather("facts", FactsText(facts), kCompileTime);
  const std::string unlike = Unlike(all);
  if (unlike.empty()) return;
  const std::set<std::string> first = Lines(all[0]);
  std::set<std::string> names;
  for (const std::string& other : all) {
    const std::set<std::string> lines = Lines(other);
    std::vector<std::string> differing;
    std::set_symmetric_difference(first.begin(), first.end(), lines.begin(),
                                  lines.end(), std::back_inserter(differing));
    for (const std::string& line : differing) {
      names.insert(line.substr(0, line.find('=')));
    }
  }
  FUSOR_CHECK(false, kGraph,
              "{} in {}: expected the same command, fusor and kind of machine "
              "on all ranks",
              unlike, Join(names, ", ", [](const auto& name) { return name; }));
}

std::string RankRun::Share(const std::string& name, const std::string& value) {
  if (world_size() == 1) return value;
  if (leads()) store_->Set("share/" + name, value);
  return store_->Get("share/" + name, timeout());
}

void RankRun::CheckParameters(const std::string& hash, FILE* text) {
  if (world_size() == 1) return;
  const std::string unlike =
      Unlike(store_->Gather("parameters", hash, timeout()));
  FUSOR_ASSERT(unlike.empty(), "{} in their parameters after training", unlike);
  fmt::print(text, "ranks     parameters are identical on all {}\n",
             world_size());
}

namespace {

runtime::RankEnvironment PlaceHere(int rank, int64_t ranks, int port) {
  runtime::RankEnvironment place;
  place.rank = place.local_rank = rank;
  place.world_size = place.local_size = static_cast<int>(ranks);
  place.host = "127.0.0.1";
  place.port = port;
  place.token = fmt::format("here {}", port);
  place.launcher = "fusor bench";
  return place;
}

// Runs a rank other than 0 in a child process.
[[noreturn]] void RunOther(
    const std::function<void(const runtime::RankEnvironment&)>& work,
    const runtime::RankEnvironment& place) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    work(place);
  } catch (const std::exception& e) {
    const Error error = ToError(e);
    fmt::print(stderr, "fusor: rank {}: {}\n", place.rank, error.what());
    _exit(static_cast<int>(error.code()));
  }
  _exit(0);
}

}  // namespace

void RunRanksHere(
    int64_t ranks,
    const std::function<void(const runtime::RankEnvironment& place)>& work) {
  if (ranks == 1) return work({});
  const int port = runtime::Socket::Listen("", 0).port();
  std::vector<pid_t> others;
  for (int rank = 1; rank < ranks; ++rank) {
    const auto place = PlaceHere(rank, ranks, port);
    const pid_t pid = fork();
    FUSOR_CHECK(pid >= 0, kDevice, "cannot start rank {}: {}", rank,
                std::strerror(errno));
    if (pid == 0) RunOther(work, place);
    others.push_back(pid);
  }
  work(PlaceHere(0, ranks, port));
  for (size_t i = 0; i < others.size(); ++i) {
    int status = 0;
    while (waitpid(others[i], &status, 0) < 0 && errno == EINTR) {
    }
    FUSOR_CHECK(status == 0, kPeerLost, "rank {} ended differently from rank 0",
                i + 1);
  }
}

FILE* OpenNullStream() {
  FILE* file = std::fopen("/dev/null", "w");
  FUSOR_CHECK(file != nullptr, kDevice, "cannot open /dev/null");
  return file;
}

std::string ParameterHash(runtime::StateStore& state) {
  state.Show(runtime::ParameterView::kCurrent);
  uint64_t hash = kHashSeed;
  std::set<std::string> names;
  for (const codegen::StateLayout::Entry& entry : state.layout().entries) {
    if (ir::IsParameter(state.Role(entry.name))) {
      names.insert(entry.name);
    }
  }
  for (const std::string& name : names) {
    hash = HashBytes(name, hash);
    ir::ForEachPiece(
        ir::Converted(state.Source(name), ir::DType::kF32),
        [&](int64_t, std::span<const uint8_t> piece) {
          hash = HashBytes(
              {reinterpret_cast<const char*>(piece.data()), piece.size()},
              hash);
        });
  }
  return fmt::format("{:016x}", hash);
}

}  // namespace fusor::tools
