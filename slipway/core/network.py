"""The settings for proxies and certificates that each library reads under a name of its own."""

from __future__ import annotations

import os
import re

from slipway.core.errors import UserError

PROXY = "HTTPS_PROXY"
ALL = ("ALL_PROXY", "all_proxy")
AUTHORITIES = "SSL_CERT_FILE"
# Programs know one case or both; OpenSSL, requests, curl and gRPC have their own names.
SYNONYMS = (
    *((name, name.lower()) for name in (PROXY, "HTTP_PROXY", "NO_PROXY")),
    (AUTHORITIES, "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE", "GRPC_DEFAULT_SSL_ROOTS_FILE_PATH"),
)


def share_settings() -> None:
    """Set the variables of all libraries for proxies and trusted authorities to what the user has set for one."""
    for names in SYNONYMS:
        sources = (*names, *ALL) if PROXY in names else names  # gRPC ignores the proxy for all schemes
        value = next((os.environ[name] for name in sources if os.environ.get(name)), None)
        for name in names if value else ():
            os.environ[name] = os.environ.get(name) or str(value)


def check_proxy(host: str) -> None:
    """Raise UserError if the proxy by which a host would be called is not one of HTTP.

    gRPC ignores the others without a word and connects directly, and requests needs another package for them.
    """
    from urllib.request import getproxies_environment, proxy_bypass

    proxy = getproxies_environment().get("https", "")
    scheme = proxy.partition("://")[0].lower() if "://" in proxy else "http"
    if scheme in ("http", "https") or proxy_bypass(host):
        return
    usable = "http://HOST:PORT"
    raise UserError(
        f"{PROXY} is not a proxy of HTTP.",
        setting=PROXY,
        value=f"{scheme}://{re.split('//|@', proxy)[-1]}",
        allowed="http://[USER:PASSWORD@]HOST:PORT, of a proxy that allows CONNECT",
        fix=f"export {PROXY}={usable} {PROXY.lower()}={usable}",
    )
