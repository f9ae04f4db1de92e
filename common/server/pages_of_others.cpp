/// @file
/// See pages_of_others.h.
#include "common/server/pages_of_others.h"

#include <boost/asio/ip/address.hpp>
#include <boost/beast/core/string.hpp>

#include "common/tokenizer/utf8.h"
#include "fmt/format.h"

namespace kvcache {
namespace {

using boost::beast::iequals;

/// Whether only this machine reaches `address`.
bool is_this_machine_alone(const boost::asio::ip::address& address) {
  if (address.is_v6() && address.to_v6().is_v4_mapped())  // ::ffff:127.0.0.1 is 127.0.0.1
    return boost::asio::ip::make_address_v4(boost::asio::ip::v4_mapped, address.to_v6()).is_loopback();
  return address.is_loopback();
}

/// Whether `host` is a name that nobody else can have given to this machine.
bool is_this_machine(std::string host, const std::string& name) {
  if (host.size() > 1 && host.ends_with('.')) host.pop_back();  // a complete name, as DNS writes it
  boost::system::error_code is_no_address;
  boost::asio::ip::make_address(host, is_no_address);
  return !is_no_address || host.empty() || iequals(host, "localhost") || iequals(host, name);
}

}  // namespace

std::string why_kept_out(const HttpRequest& request, const ServerAddress& server) {
  if (request.cross_site && request.method != "GET" && request.method != "HEAD")
    return "a web page of another site asks for this; only this server's own page may";
  if (is_this_machine_alone(server.bound) && !is_this_machine(request.host, server.name))
    return fmt::format("Host is {}, and this server answers only this machine; ask {}",
                       shortened(request.host), server.url);
  return "";
}

}  // namespace kvcache
