/// @file
/// See http_request.h.
#include "common/serving/http_request.h"

#include <boost/beast/core/string.hpp>
#include <utility>

namespace kvcache {
namespace {

namespace http = boost::beast::http;

std::string_view text_of(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

/// "example.org:80" and "[::1]:80" without the port.
std::string_view without_port(std::string_view host) {
  if (host.starts_with('[')) return host.substr(1, host.find(']') - 1);
  return host.substr(0, host.find(':'));
}

}  // namespace

bool has_one_host(const HttpMessage& message) {
  const std::size_t hosts = message.count(http::field::host);
  return hosts == 1 || (hosts == 0 && message.version() < 11);
}

HttpRequest request_of(HttpMessage&& message) {
  constexpr boost::beast::string_view scheme = "http://";
  std::string_view target = text_of(message.target()), host = text_of(message[http::field::host]);
  if (boost::beast::iequals(message.target().substr(0, scheme.size()), scheme)) {
    target.remove_prefix(scheme.size());
    host = target.substr(0, target.find_first_of("/?"));  // it counts, whatever the field says
    target.remove_prefix(host.size());
  }
  HttpRequest request;
  request.method = text_of(message.method_string());
  request.path = target.substr(0, target.find('?'));
  if (request.path.empty()) request.path = "/";
  request.host = without_port(host);
  request.cross_site = message["Sec-Fetch-Site"] == "cross-site";
  request.body = std::move(message.body());
  return request;
}

}  // namespace kvcache
