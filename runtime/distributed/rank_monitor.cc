#include "runtime/distributed/rank_monitor.h"

#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <random>
#include <utility>

#include "ir/support/error.h"
#include "ir/support/signals_blocked.h"
#include "ir/support/str.h"

namespace fusor::runtime {

// First field of a message between peers. The second is a text, empty or a
// reason, except for kAlive.
enum class RankMonitor::Word : int64_t {
  kAlive,  // number of collectives started
  kDone,
  kFailed,  // reason; the receiver gets time to detect it itself
  kLost,    // reason; the receiver must end
};

namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kMomentToFail{2'000};
constexpr milliseconds kFarewell{1'000};
constexpr milliseconds kLastWord{500};

std::string MessageOf(int64_t word, std::string_view text) {
  return MessageWriter().Add(word).Add(text).Take();
}

milliseconds IntervalOf(milliseconds timeout) {
  return std::clamp(timeout / 8, milliseconds(10), milliseconds(1000));
}

std::string RandomSecret() {
  std::random_device random;
  return fmt::format("{:08x}{:08x}", random(), random());
}

// Returns "rank 1 on a, rank 5 on b are".
std::string NamesText(std::vector<std::string> names) {
  constexpr size_t kNamed = 8;
  const size_t more = names.size() - std::min(names.size(), kNamed);
  names.resize(names.size() - more);
  return Join(names, ", ", [](const std::string& name) { return name; }) +
         (more > 0 ? fmt::format(" and {} more", more) : "") +
         (names.size() > 1 ? " are" : " is");
}

}  // namespace

RankMonitor::RankMonitor(TcpStore& store, RankMonitorOptions options)
    : options_(std::move(options)),
      rank_(store.rank()),
      world_size_(store.world_size()),
      interval_(IntervalOf(options_.timeout)),
      wake_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
  FUSOR_CHECK(wake_.valid(), kDevice, "eventfd: {}", std::strerror(errno));
  const Deadline deadline = steady_clock::now() + options_.timeout;
  if (rank_ == 0) {
    AcceptAll(store, deadline);
  } else {
    ConnectToFirst(store, deadline);
  }
  own_ = MakePeer(rank_, options_.host, Socket());
  const SignalsBlocked blocked;
  thread_ = std::thread([this] { Watch(); });
}

RankMonitor::~RankMonitor() { Stop(); }

RankMonitor::Peer RankMonitor::MakePeer(int rank, std::string host,
                                        Socket socket) const {
  return {.rank = rank,
          .host = std::move(host),
          .socket = std::move(socket),
          .heard = steady_clock::now(),
          .abreast = steady_clock::now()};
}

// Publishes its port and a secret, known only to ranks of this run, through the
// store.
void RankMonitor::AcceptAll(TcpStore& store, Deadline deadline) {
  const Socket listener = Socket::Listen("", 0);
  const std::string secret = RandomSecret();
  store.Set("monitor", fmt::format("{} {}", listener.port(), secret));
  while (peers_.size() + 1 < static_cast<size_t>(world_size_)) {
    const auto left = std::chrono::duration_cast<milliseconds>(
        deadline - steady_clock::now());
    pollfd entry{listener.fd(), POLLIN, 0};
    if (left.count() > 0) poll(&entry, 1, static_cast<int>(left.count()));
    Socket socket;
    if ((entry.revents & POLLIN) != 0) socket = listener.Accept();
    if (socket.valid() && Admit(std::move(socket), secret, deadline)) continue;
    std::vector<std::string> missing;
    for (int rank = 1; rank < world_size_; ++rank) {
      if (std::none_of(peers_.begin(), peers_.end(),
                       [&](const Peer& peer) { return peer.rank == rank; })) {
        missing.push_back(fmt::format("rank {}", rank));
      }
    }
    FUSOR_CHECK(steady_clock::now() < deadline, kPeerLost,
                "{} missing: no connection to rank 0 after {} s",
                NamesText(missing), options_.timeout.count() / 1e3);
  }
}

// Returns false for a process of another run, and for a disconnected rank.
bool RankMonitor::Admit(Socket socket, std::string_view secret,
                        Deadline deadline) {
  deadline = std::min(deadline, steady_clock::now() + kGreetingTime);
  try {
    const std::string message = ReceiveMessage(socket, deadline);
    MessageReader reader(message);
    if (reader.String() != secret) return false;
    const auto rank = static_cast<int>(reader.Number());
    std::string host = reader.String();
    socket.Send(MessageWriter().Add(options_.host).Take(), deadline);
    peers_.push_back(MakePeer(rank, std::move(host), std::move(socket)));
    return true;
  } catch (const Error&) {
    return false;
  }
}

void RankMonitor::ConnectToFirst(TcpStore& store, Deadline deadline) {
  const std::string place = store.Get("monitor", options_.timeout);
  const size_t space = place.find(' ');
  Socket socket = Socket::Connect(store.host(),
                                  std::stoi(place.substr(0, space)), deadline);
  FUSOR_CHECK(socket.valid(), kPeerLost,
              "rank 0 at {} is missing: no connection to its monitor",
              store.host());
  socket.Send(MessageWriter()
                  .Add(std::string_view(place).substr(space + 1))
                  .Add(int64_t{rank_})
                  .Add(options_.host)
                  .Take(),
              deadline);
  const std::string message = ReceiveMessage(socket, deadline);
  std::string host = MessageReader(message).String();
  peers_.push_back(MakePeer(0, std::move(host), std::move(socket)));
}

void RankMonitor::Watch() {
  Deadline beat = steady_clock::now();
  while (!stop_) {
    Await(patience_ ? std::min(beat, *patience_) : beat);
    const Deadline now = steady_clock::now();
    // While this thread was not running, it could not receive.
    const auto slept = now - beat;
    if (slept > interval_) own_.abreast += slept;
    for (Peer& peer : peers_) {
      if (slept > interval_) {
        peer.heard += slept;
        peer.abreast += slept;
      }
      Read(peer);
    }
    std::erase_if(peers_, [&](const Peer& peer) {
      return peer.done || (patience_ && peer.closed);
    });
    if (now >= beat) {
      Beat();
      beat = now + interval_;
    }
    if (rank_ == 0) Compare(now);
    const std::optional<std::string> why = Verdict(steady_clock::now());
    if (!why) continue;
    Part(Word::kLost, *why, kLastWord);
    options_.lost(*why);
    return;
  }
}

// Waits until the deadline or until a message arrives.
void RankMonitor::Await(Deadline deadline) {
  std::vector<pollfd> entries{{wake_.fd(), POLLIN, 0}};
  for (const Peer& peer : peers_) {
    const int out = peer.out.empty() ? 0 : POLLOUT;
    entries.push_back({peer.socket.fd(), static_cast<short>(POLLIN | out), 0});
  }
  const auto left =
      std::chrono::duration_cast<milliseconds>(deadline - steady_clock::now());
  poll(entries.data(), entries.size(),
       static_cast<int>(std::max<int64_t>(0, left.count() + 1)));
}

void RankMonitor::Read(Peer& peer) {
  char bytes[4096];
  ssize_t got;
  while ((got = recv(peer.socket.fd(), bytes, sizeof(bytes), MSG_DONTWAIT)) >
         0) {
    peer.heard = steady_clock::now();
    peer.in.append(bytes, static_cast<size_t>(got));
  }
  peer.closed = got == 0 || (errno != EAGAIN && errno != EINTR);
  try {
    while (const auto message = TakeMessage(peer.in, kMaxMessageBytes)) {
      Hear(peer, *message);
    }
  } catch (const Error&) {
    peer.closed = true;  // malformed message
  }
  if (!peer.out.empty()) Write(peer);
}

void RankMonitor::Hear(Peer& peer, std::string_view message) {
  MessageReader reader(message);
  const auto word = static_cast<Word>(reader.Number());
  if (word == Word::kAlive) {
    const int64_t begun = reader.Number();
    if (begun != peer.begun) peer.abreast = steady_clock::now();
    peer.begun = begun;
    return;
  }
  const std::string text = reader.String();
  if (word == Word::kDone) {
    peer.done = true;
    return;
  }
  // Keep the first reason only.
  if (patience_) return;
  told_ = text;
  patience_ = steady_clock::now();
  if (word == Word::kLost) return;
  *patience_ += kMomentToFail;
  peer.done = true;
  Forward(peer, text);
}

// Forwards to the other ranks an error reported to rank 0.
void RankMonitor::Forward(const Peer& from, std::string_view why) {
  for (Peer& peer : peers_) {
    if (&peer == &from) continue;
    peer.out += MessageOf(static_cast<int64_t>(Word::kFailed), why);
    Write(peer);
  }
}

// Sends as much as the connection accepts now.
void RankMonitor::Write(Peer& peer) {
  const ssize_t sent = send(peer.socket.fd(), peer.out.data(), peer.out.size(),
                            MSG_NOSIGNAL | MSG_DONTWAIT);
  if (sent > 0) peer.out.erase(0, static_cast<size_t>(sent));
}

void RankMonitor::Beat() {
  for (Peer& peer : peers_) {
    // Do not queue heartbeats for a peer that is not reading.
    if (!peer.out.empty()) continue;
    peer.out = MessageWriter()
                   .Add(static_cast<int64_t>(Word::kAlive))
                   .Add(begun_.load())
                   .Take();
    Write(peer);
  }
}

// Returns why the run is over; null if it is not.
std::optional<std::string> RankMonitor::Verdict(Deadline now) const {
  if (patience_) return now >= *patience_ ? std::optional(told_) : std::nullopt;
  std::vector<std::string> gone, silent;
  milliseconds longest{0};
  for (const Peer& peer : peers_) {
    const std::string name = fmt::format("rank {} on {}", peer.rank, peer.host);
    const auto silence =
        std::chrono::duration_cast<milliseconds>(now - peer.heard);
    longest = std::max(longest, silence);
    if (peer.closed) gone.push_back(name);
    // Ranks of one host fail together, but their heartbeats are not in phase.
    if (silence > options_.timeout - 2 * interval_) silent.push_back(name);
  }
  if (!gone.empty()) {
    return NamesText(gone) + " gone: the connection ended without a word";
  }
  if (longest <= options_.timeout) return Stuck(now);
  return fmt::format("{} frozen or unreachable: not heard of for {:.1f} s",
                     NamesText(silent),
                     std::chrono::duration<double>(longest).count());
}

// Updates which ranks lag behind the others.
void RankMonitor::Compare(Deadline now) {
  const int64_t begun = begun_;
  own_.heard = now;
  if (begun != own_.begun) own_.abreast = now;
  own_.begun = begun;
  int64_t most = begun;
  for (const Peer& peer : peers_) most = std::max(most, peer.begun);
  if (own_.begun == most) own_.abreast = now;
  for (Peer& peer : peers_) {
    if (peer.begun == most) peer.abreast = now;
  }
}

// Returns the ranks that started the fewest collectives, and none for a timeout
// while others were ahead.
std::optional<std::string> RankMonitor::Stuck(Deadline now) const {
  int64_t least = own_.begun;
  int64_t most = own_.begun;
  for (const Peer& peer : peers_) {
    least = std::min(least, peer.begun);
    most = std::max(most, peer.begun);
  }
  std::vector<std::string> names;
  const auto add = [&](const Peer& peer) {
    if (peer.begun > least || now - peer.abreast <= options_.timeout) return;
    // A silent rank's count is stale; it may be unresponsive.
    if (now - peer.heard > 2 * interval_) return;
    names.push_back(fmt::format("rank {} on {}", peer.rank, peer.host));
  };
  add(own_);
  for (const Peer& peer : peers_) add(peer);
  if (rank_ != 0 || least == most || names.empty()) return std::nullopt;
  return fmt::format(
      "{} stuck: {} collectives begun, others {}, and none for {:.1f} s",
      NamesText(names), least, most,
      std::chrono::duration<double>(options_.timeout).count());
}

// Sends the message to all peers and waits until they have closed their end, so
// that no data is lost when this process ends.
void RankMonitor::Part(Word word, std::string_view text,
                       milliseconds patience) {
  const Deadline deadline = steady_clock::now() + patience;
  for (Peer& peer : peers_) {
    try {
      peer.socket.Send(peer.out + MessageOf(static_cast<int64_t>(word), text),
                       deadline);
      shutdown(peer.socket.fd(), SHUT_WR);
    } catch (const Error&) {
      // The peer has disconnected.
    }
  }
  for (Peer& peer : peers_) {
    try {
      char byte[1];
      while (true) peer.socket.Receive(byte, deadline);
    } catch (const Error&) {
      // The peer has closed the connection, or is unresponsive.
    }
  }
  peers_.clear();
}

void RankMonitor::Stop() {
  stop_ = true;
  const uint64_t one = 1;
  // Fails only if the counter would overflow.
  (void)!write(wake_.fd(), &one, sizeof(one));
  if (thread_.joinable()) thread_.join();
}

void RankMonitor::Leave() {
  Stop();
  Part(Word::kDone, "", kFarewell);
}

void RankMonitor::Fail(const std::string& why) {
  Stop();
  Part(Word::kFailed,
       fmt::format("rank {} on {} failed: {}", rank_, options_.host, why),
       kFarewell);
}

}  // namespace fusor::runtime
