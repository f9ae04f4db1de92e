/// @file
/// Keeps web pages of others out: a browser lets any page send requests to this machine. Described in
/// docs/serving.md ("Pages of others").
#pragma once

#include <boost/asio/ip/address.hpp>
#include <string>

#include "common/server/http_server.h"

namespace kvcache {

/// Where a server listens.
struct ServerAddress {
  std::string name;                ///< of this machine, as the server was given it
  boost::asio::ip::address bound;  ///< what that name stands for
  std::string url;                 ///< "http://127.0.0.1:5000"
};

/// Why `request` is answered 403, and what would be right; empty: it is let in. Kept out are
///
/// - requests of a page of another site, except GET and HEAD;
/// - if the server listens to this machine alone, a Host that others can have given to this machine, so that
///   no page reads answers by a name of its own (DNS rebinding).
std::string why_kept_out(const HttpRequest& request, const ServerAddress& server);

}  // namespace kvcache
