/// @file
/// What an HTTP message asks for.
#pragma once

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>

#include <string>

#include "common/server/http_server.h"

namespace kvcache {

/// As Boost.Beast has parsed it.
using HttpMessage = boost::beast::http::request<boost::beast::http::string_body>;

/// Why a message that was parsed is no request all the same, in one line; empty: it is one.
std::string why_no_request(const HttpMessage& message);
/// The request. Its target is a path, or the whole address as a proxy is asked for it (RFC 9112
/// section 3.2.2).
HttpRequest request_of(HttpMessage&& message);

}  // namespace kvcache
