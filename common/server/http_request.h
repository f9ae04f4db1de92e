/// @file
/// From the header of an HTTP message to a request: its path, host and origin. http_connection.cpp reads the
/// message, chunked bodies too, and checks the limits of http_limits.h. The JSON of a body is read in
/// generate_request.cpp and openai.cpp.
#pragma once

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>

#include <string>

#include "common/server/http_server.h"

namespace kvcache {

/// A message as Boost.Beast has parsed it.
using HttpMessage = boost::beast::http::request<boost::beast::http::string_body>;

/// Why a message with this header is no valid request, in one line; empty: it is valid.
std::string why_no_request(const HttpMessage& message);
/// The request that a message's header makes, without its body. The message's target is a path, or a whole
/// address as sent to a proxy (RFC 9112 section 3.2.2).
HttpRequest request_of(const HttpMessage& message);

}  // namespace kvcache
