/// @file
/// What an HTTP message asks for.
#pragma once

#include <boost/beast/http/message.hpp>
#include <boost/beast/http/string_body.hpp>

#include "common/serving/http_server.h"

namespace kvcache {

/// As Boost.Beast has parsed it.
using HttpMessage = boost::beast::http::request<boost::beast::http::string_body>;

/// Whether it says once whom it is for; before HTTP/1.1 it need not (RFC 9112 section 3.2).
bool has_one_host(const HttpMessage& message);
/// The request. Its target is a path, or the whole address as a proxy is asked for it (RFC 9112
/// section 3.2.2).
HttpRequest request_of(HttpMessage&& message);

}  // namespace kvcache
