/// @file
/// A client of an HTTP server, so plain that it can also send wrong bytes: one blocking socket, on loopback.
/// It waits for an answer that must come, and fails after minutes.
#pragma once

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "fmt/format.h"

namespace kvcache {

/// An answer of a server.
struct HttpResponse {
  int status = 0;                              ///< 0: the connection ended before an answer
  std::map<std::string, std::string> headers;  ///< by name, in small letters
  std::string body;

  nlohmann::json json() const { return nlohmann::json::parse(body); }
  /// The error in an answer.
  nlohmann::json error() const { return json().at("error"); }
};

class HttpClient {
 public:
  static constexpr int kMilliseconds = 120'000;

  /// Connects.
  /// @param receive_buffer  bytes that the system buffers for this client; 0: as usual
  explicit HttpClient(int port, int receive_buffer = 0) : socket_(::socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0)
      setsockopt(socket_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<std::uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(socket_, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0)
      throw std::runtime_error("no connection");
    const int on = 1;
    setsockopt(socket_, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  }
  ~HttpClient() { hang_up(); }
  HttpClient(HttpClient&& other) noexcept
      : socket_(std::exchange(other.socket_, -1)), unread_(std::move(other.unread_)) {}
  HttpClient& operator=(HttpClient&&) = delete;

  /// Sends the bytes. Returns whether the other side took them.
  bool send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t sent = ::send(socket_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (sent <= 0) return false;
      bytes.remove_prefix(static_cast<std::size_t>(sent));
    }
    return true;
  }
  void send_request(const std::string& method, const std::string& path, const std::string& body = "",
                    const std::string& headers = "") {
    send(fmt::format("{} {} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {}\r\n{}\r\n{}", method, path,
                     body.size(), headers, body));
  }

  /// The next answer, complete. If it is cut off, its body is cut off.
  HttpResponse read_response(bool has_body = true) {
    HttpResponse response = read_head();
    if (!has_body || response.status == 0 || response.status == 100) return response;
    if (response.headers.contains("transfer-encoding")) {
      while (const std::optional<std::string> chunk = read_chunk()) response.body += *chunk;
    } else if (response.headers.contains("content-length")) {
      const std::size_t size = std::stoul(response.headers["content-length"]);
      while (unread_.size() < size && receive()) {
      }
      response.body = take(std::min(size, unread_.size()));
    } else {
      while (receive()) {
      }
      response.body = std::exchange(unread_, {});
    }
    return response;
  }
  HttpResponse get(const std::string& path) {
    send_request("GET", path);
    return read_response();
  }
  HttpResponse post(const std::string& path, const nlohmann::json& body) {
    send_request("POST", path, body.dump());
    return read_response();
  }

  /// The status and headers of an answer.
  HttpResponse read_head() {
    HttpResponse response;
    const std::optional<std::string> first = read_line();
    if (!first) return response;
    response.status = std::stoi(first->substr(first->find(' ') + 1));
    for (std::optional<std::string> line; (line = read_line()) && !line->empty();) {
      const std::size_t colon = line->find(':');
      std::string name = line->substr(0, colon);
      for (char& letter : name) letter = static_cast<char>(std::tolower(letter));
      response.headers[name] = line->substr(line->find_first_not_of(' ', colon + 1));
    }
    return response;
  }
  /// The next chunk of a chunked answer; nothing after the last chunk, or if the answer is cut off.
  std::optional<std::string> read_chunk() {
    const std::optional<std::string> line = read_line();
    if (!line) return std::nullopt;
    const std::size_t size = std::stoul(*line, nullptr, 16);
    while (unread_.size() < size + 2) {
      if (!receive()) return std::nullopt;
    }
    const std::string chunk = take(size);
    take(2);
    return size == 0 ? std::nullopt : std::optional(chunk);
  }
  /// Whether the server has ended the connection, and nothing is left to read.
  bool ended_by_server() {
    while (receive()) {
    }
    return unread_.empty();
  }

  /// Leaves and throws away unread bytes, as a killed program does.
  void hang_up() {
    if (socket_ >= 0) ::close(std::exchange(socket_, -1));
  }
  /// Tells the server that no more bytes will come.
  void end_sending() { shutdown(socket_, SHUT_WR); }

 private:
  /// Waits for more bytes. False if the connection has ended.
  bool receive() {
    pollfd waiting{socket_, POLLIN, 0};
    if (poll(&waiting, 1, kMilliseconds) != 1) throw std::runtime_error("nothing comes");
    char bytes[4096];
    const ssize_t count = recv(socket_, bytes, sizeof(bytes), 0);
    if (count <= 0) return false;
    unread_.append(bytes, static_cast<std::size_t>(count));
    return true;
  }
  std::string take(std::size_t count) {
    std::string taken = unread_.substr(0, count);
    unread_.erase(0, count);
    return taken;
  }
  std::optional<std::string> read_line() {
    std::size_t end;
    while ((end = unread_.find("\r\n")) == std::string::npos) {
      if (!receive()) return std::nullopt;
    }
    const std::string line = take(end);
    take(2);
    return line;
  }

  int socket_;
  std::string unread_;
};

/// The port of "http://127.0.0.1:5000".
inline int port_of(const std::string& address) {
  return std::stoi(address.substr(address.rfind(':') + 1));
}

}  // namespace kvcache
