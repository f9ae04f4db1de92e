/// @file
/// See http_request.h. Limits are checked in http_connection.cpp.
#include "common/server/http_request.h"

#include <boost/beast/core/string.hpp>
#include <charconv>
#include <optional>
#include <utility>

namespace kvcache {
namespace {

namespace http = boost::beast::http;

std::string_view text_of(boost::beast::string_view text) {
  return {text.data(), text.size()};
}
boost::beast::string_view view_of(std::string_view text) {
  return {text.data(), text.size()};
}

/// The host of "example.org:80" or "[::1]:80", without the port; no value for another form.
std::optional<std::string_view> host_of(std::string_view authority) {
  constexpr std::size_t none = std::string_view::npos;
  const bool brackets = authority.starts_with('[');
  const std::size_t end = authority.find(brackets ? ']' : ':');
  if (brackets && end == none) return std::nullopt;
  const std::string_view host = authority.substr(brackets, end - brackets);
  const std::string_view port = end == none ? "" : authority.substr(end + brackets);
  if (port.empty()) return host;
  const bool is_port = port.starts_with(':') && port.find_first_not_of("0123456789", 1) == none;
  return is_port ? std::optional(host) : std::nullopt;
}

/// Decodes "/my%20model" to "/my model". An invalid escape stays as it is.
std::string without_escapes(std::string_view path) {
  std::string plain;
  for (std::size_t at = 0; at < path.size(); ++at) {
    const std::string_view digits = path[at] == '%' ? path.substr(at + 1, 2) : "";
    const bool is_escape =
        digits.size() == 2 && digits.find_first_not_of("0123456789abcdefABCDEF") == std::string_view::npos;
    unsigned code = 0;
    if (is_escape) std::from_chars(digits.data(), digits.data() + digits.size(), code, 16);
    plain += is_escape ? static_cast<char>(code) : path[at];
    at += is_escape ? 2 : 0;
  }
  return plain;
}

/// The Content-Encoding of a message, in one line.
std::string coding_of(const HttpMessage& message) {
  std::string coding;
  const auto [begin, end] = message.equal_range(http::field::content_encoding);
  for (auto field = begin; field != end; ++field)
    coding += (coding.empty() ? "" : ", ") + std::string(text_of(field->value()));
  return coding;
}

/// Whether a browser says that a page of another site asks. Browsers send Sec-Fetch-Site only to this machine
/// or over TLS; elsewhere Origin says it.
bool is_cross_site(const HttpMessage& message) {
  const auto site = message.find("Sec-Fetch-Site"), origin = message.find(http::field::origin);
  if (site != message.end()) return site->value() == "cross-site";
  if (origin == message.end()) return false;
  const std::string_view page = text_of(origin->value());
  const std::size_t scheme = page.find("://");
  return scheme == std::string_view::npos ||
         !boost::beast::iequals(view_of(page.substr(scheme + 3)), message[http::field::host]);
}

}  // namespace

std::string why_no_request(const HttpMessage& message) {
  // Other codings are not decoded here. And if "chunked" is not the last one, two programs may disagree where
  // the body ends: one takes for the next request what the other takes for the body.
  if (message.count(http::field::transfer_encoding) > 0) {
    if (!boost::beast::iequals(message[http::field::transfer_encoding], "chunked"))
      return "the one Transfer-Encoding that is known here is chunked";
    if (message.version() < 11) return "HTTP/1.0 has no Transfer-Encoding; give Content-Length";
  }
  // RFC 9112 section 3.2; HTTP/1.0 needs no Host.
  const std::size_t hosts = message.count(http::field::host);
  if (hosts > 1 || (hosts == 0 && message.version() >= 11)) return "a request of HTTP/1.1 needs one Host";
  if (!host_of(text_of(message[http::field::host])))
    return "Host is no name or address, with a port or without one";
  return "";
}

HttpRequest request_of(const HttpMessage& message) {
  constexpr boost::beast::string_view scheme = "http://";
  std::string_view target = text_of(message.target()), host = text_of(message[http::field::host]);
  if (boost::beast::iequals(message.target().substr(0, scheme.size()), scheme)) {
    target.remove_prefix(scheme.size());
    host = target.substr(0, target.find_first_of("/?"));  // it counts, and the field Host does not
    target.remove_prefix(host.size());
  }
  HttpRequest request;
  request.method = text_of(message.method_string());
  request.path = without_escapes(target.substr(0, target.find('?')));
  if (request.path.empty()) request.path = "/";
  request.host = host_of(host).value_or("?");
  request.coding = coding_of(message);
  request.cross_site = is_cross_site(message);
  return request;
}

}  // namespace kvcache
