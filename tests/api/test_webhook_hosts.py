"""Which addresses deliveries may be sent to."""

import ipaddress
import socket
import threading

import anyio
import httpx
import pytest

from tunewright.api.http import webhook_hosts
from tunewright.api.http.webhook_hosts import (
    LONGEST_URL,
    TooManyNames,
    UnfitAddress,
    WebhookHosts,
    is_public,
    parse_url,
)

from ..waiting import wait_for

PUBLIC = ["93.184.215.14", "8.8.8.8", "2606:2800:21f:cb07:6820:80da:af6b:8b2c", "64:ff9b::808:808", "2002:808:808::1"]

PRIVATE = [
    *("0.0.0.0", "0.1.2.3", "10.1.2.3", "100.64.0.1", "127.0.0.1", "127.8.8.8", "169.254.169.254", "172.16.0.1"),
    *("192.0.0.1", "192.0.2.1", "192.168.1.1", "198.18.0.1", "203.0.113.5", "224.0.0.1", "239.1.1.1"),
    *("240.0.0.1", "255.255.255.255"),
    *("::", "::1", "::127.0.0.1", "::ffff:10.0.0.1", "::ffff:127.0.0.1", "::ffff:169.254.169.254"),
    *("64:ff9b::7f00:1", "64:ff9b::a00:1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::808:808", "100::1"),
    *("2002:7f00:1::1", "2002:a00:1::", "2001::1", "2001:db8::1", "fc00::1", "fd12:3456::1", "fe80::1"),
    *("fe80::1%eth0", "fec0::1", "ff02::1", "ff0e::1", "4000::1"),
]


@pytest.fixture
def resolved(monkeypatch):
    """A function that says what names lead to."""
    really = socket.getaddrinfo

    def say(**hosts):
        def look_up(host, port, *family, **wanted):
            if family:  # a thread that connects to something else meanwhile, as one that watches Ray's processes
                return really(host, port, *family, **wanted)
            if host not in hosts:
                raise socket.gaierror(socket.EAI_NONAME, "unknown")
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, port)) for address in hosts[host]]

        monkeypatch.setattr(socket, "getaddrinfo", look_up)

    return say


def addresses(hosts, url):
    return anyio.run(hosts.addresses, parse_url(url))


@pytest.mark.parametrize("text", PUBLIC)
def test_public_addresses(text):
    assert is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize("text", PRIVATE)
def test_addresses_of_no_public_host(text):
    assert not is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://example.org/", "must begin with https"),
        ("file:///etc/passwd", "must begin with https"),
        ("gopher://example.org/", "must begin with https"),
        ("//example.org/x", "must begin with https"),
        ("example.org", "must begin with https"),
        ("https://user:pass@example.org/", "no user and password"),
        ("https://user@example.org/", "no user and password"),
        ("https://:secret@example.org/", "no user and password"),
        ("https://example.org/#x", "no #"),
        ("https:///x", "no host"),
        ("https://", "no host"),
        ("https://example.org:0/", "no host"),
        ("https://example.org:99999/", "no host"),
        ("https://example.org:x/", "is no URL"),
        ("https://exa\nmple.org/", "is no URL"),
        ("https://example.org/\0", "is no URL"),
        ("https://[::1/", "is no URL"),
        ("https://" + "a" * 300 + ".org/", "no host"),
        ("https://example.org/" + "a" * LONGEST_URL, "at most 2,048"),
    ],
)
def test_addresses_of_another_form(url, why):
    with pytest.raises(UnfitAddress, match=why):
        parse_url(url)


@pytest.mark.parametrize("address", PRIVATE)
def test_a_name_that_leads_to_one_private_address_is_refused(resolved, address):
    resolved(hook=[PUBLIC[0], address])
    with pytest.raises(UnfitAddress, match="not of the public Internet"):
        addresses(WebhookHosts(), "https://hook/")


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "2130706433", "0x7f000001", "0177.0.0.1", "127.1", "[::1]", "[::ffff:127.0.0.1]", "0", "[::]"]
)
def test_no_way_to_write_an_address_leads_to_this_machine(host):
    with pytest.raises(UnfitAddress):
        addresses(WebhookHosts(), f"https://{host}/")


def test_public_hosts_need_tls(resolved):
    resolved(hook=PUBLIC)
    assert addresses(WebhookHosts(), "https://hook/") == PUBLIC
    with pytest.raises(UnfitAddress, match="https://"):
        addresses(WebhookHosts(), "http://hook/")


@pytest.mark.parametrize("allowed", ["hook.corp", " 10.1.0.0/16 , 192.168.7.7", "HOOK.corp.,other"])
def test_hosts_that_are_allowed(resolved, allowed):
    resolved(**{"hook.corp": ["10.1.2.3", "192.168.7.7"], "evil.corp": ["10.1.2.3", "192.168.7.8"]})
    hosts = WebhookHosts.of(allowed)
    for scheme in ("http", "https"):
        assert addresses(hosts, f"{scheme}://hook.corp/x") == ["10.1.2.3", "192.168.7.7"]
        with pytest.raises(UnfitAddress):
            addresses(hosts, f"{scheme}://evil.corp/x")


def test_what_is_not_resolved(resolved):
    resolved()
    with pytest.raises(UnfitAddress, match="can't be resolved"):
        addresses(WebhookHosts(), "https://nowhere/")


def test_so_many_names_are_resolved_at_once(monkeypatch, resolved):
    """Also those that nobody waits for any more: their threads go on."""
    monkeypatch.setattr(webhook_hosts, "RESOLVING_S", 0.01)
    monkeypatch.setattr(webhook_hosts, "_resolving", threading.BoundedSemaphore(2))
    over, running = threading.Event(), threading.Semaphore(0)

    def hang(*_, **__):
        running.release()
        over.wait(60)
        return []

    monkeypatch.setattr(socket, "getaddrinfo", hang)
    for _ in range(2):
        with pytest.raises(UnfitAddress, match="can't be resolved"):
            addresses(WebhookHosts(), "https://hook/")
        assert running.acquire(timeout=60)
    monkeypatch.setattr(webhook_hosts, "RESOLVING_S", 60.0)
    with pytest.raises(TooManyNames, match="at once"):
        addresses(WebhookHosts(), "https://hook/")
    resolved(hook=PUBLIC)
    over.set()

    def look():
        try:
            return addresses(WebhookHosts(), "https://hook/")
        except TooManyNames:
            return None

    assert wait_for(look) == PUBLIC


@pytest.mark.parametrize("name", ["a" * 64 + ".org", "a..b", "xn--a"])
def test_names_that_are_none(name):
    with pytest.raises(UnfitAddress):
        addresses(WebhookHosts(), f"https://{name}/")


@pytest.mark.parametrize(
    "text", ["10.1.0.1/16", "a b", "http://hook", "hook:80", "10.0.0.0/33", "hook/x", "*.corp", "é"]
)
def test_a_setting_that_means_nothing(text):
    with pytest.raises(ValueError, match="neither the name of a host nor a network"):
        WebhookHosts.of(f"good.corp,{text}")


def test_no_setting():
    assert WebhookHosts.of("") == WebhookHosts.of(" , ") == WebhookHosts()


def test_an_address_stands_for_its_host():
    url = httpx.URL("https://hook.example.org:8443/a?b=c")
    assert str(url.copy_with(host="2606:2800::1")) == "https://[2606:2800::1]:8443/a?b=c"
