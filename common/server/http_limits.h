/// @file
/// The limits of the server's clients, as numbers. http_connection.cpp checks those of one client, with the
/// answers 408, 413 and 431; http_server.cpp checks how many are connected. Described in docs/serving.md.
#pragma once

#include <chrono>
#include <cstddef>

namespace kvcache {

/// The limits of clients.
struct HttpLimits {
  std::size_t header_bytes = 16 << 10;      ///< of one request; more: 431
  std::size_t body_bytes = 1 << 20;         ///< of one request; more: 413
  std::size_t unsent_bytes = 64 << 10;      ///< of a stream that wait; beyond, its sender joins parts
  int socket_bytes = 64 << 10;              ///< of an answer that wait in the system
  std::size_t connections = 256;            ///< open at a time
  std::chrono::milliseconds read{10'000};   ///< from the first byte of a request to its last; more: 408
  std::chrono::milliseconds idle{20'000};   ///< between requests
  std::chrono::milliseconds write{20'000};  ///< for a client to take some of what is ready
  std::chrono::milliseconds linger{1'000};  ///< for a client to read the last answer before the end
};

}  // namespace kvcache
