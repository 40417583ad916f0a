#!/usr/bin/env python3
"""A CNI plugin in Python: a veth pair with the address that the configuration has. The conformance tests run it."""

import hashlib
import ipaddress
import json
import os
import re
import subprocess
import sys

VERSIONS = ["0.4.0", "1.0.0", "1.1.0"]


class Refused(Exception):
    """The call is refused with a code and a message."""


def ip(*words, netns=None):
    """Runs ip(8), in a namespace if one is given. Returns its standard output."""
    enter = ["nsenter", f"--net={netns}"] if netns else []
    done = subprocess.run([*enter, "ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(100, f"ip {' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


def tag(network, container, ifname):
    """The alias of the host end, and its name."""
    text = f"pair {network} {container} {ifname}"
    return text, "pair" + hashlib.sha256(text.encode()).hexdigest()[:10]


def host_ends(network):
    """The host ends of a network: pairs of alias and name."""
    for link in json.loads(ip("-j", "link", "show", "type", "veth") or "[]"):
        if link.get("ifalias", "").startswith(f"pair {network} "):
            yield link["ifalias"], link["ifname"]


def remove(name):
    """Removes a link, which may be gone."""
    try:
        ip("link", "del", name)
    except Refused:
        if os.path.exists(f"/sys/class/net/{name}") or name in ip("-o", "link", "show"):
            raise


def add(conf, env):
    address = ipaddress.ip_interface(conf["address"])
    alias, host_end = tag(conf["name"], env["CNI_CONTAINERID"], env["CNI_IFNAME"])
    netns, ifname = env["CNI_NETNS"], env["CNI_IFNAME"]
    if not os.path.exists(netns):
        raise Refused(4, f"CNI_NETNS {netns} does not exist")
    ip("link", "add", host_end, "type", "veth", "peer", "name", ifname, "netns", netns)
    try:
        ip("link", "set", host_end, "alias", alias, "up")
        ip("address", "add", str(address), "dev", ifname, netns=netns)
        ip("link", "set", ifname, "up", netns=netns)
        links = [json.loads(ip("-j", "link", "show", host_end))[0], json.loads(ip("-j", "link", "show", ifname, netns=netns))[0]]
    except BaseException:
        remove(host_end)
        raise
    interfaces = [{"name": link["ifname"], "mac": link["address"]} for link in links]
    interfaces[1]["sandbox"] = netns
    one = {"address": str(address), "interface": 1}
    if conf["cniVersion"].startswith("0."):
        one["version"] = str(address.version)
    return {"cniVersion": conf["cniVersion"], "interfaces": interfaces, "ips": [one]}


def check(conf, env):
    link = json.loads(ip("-j", "address", "show", env["CNI_IFNAME"], netns=env["CNI_NETNS"]))[0]
    if "UP" not in link["flags"]:
        raise Refused(102, f"{env['CNI_IFNAME']} is not up")
    for wanted in conf.get("prevResult", {}).get("ips", []):
        if not any(wanted["address"] == f"{one['local']}/{one['prefixlen']}" for one in link["addr_info"]):
            raise Refused(102, f"{env['CNI_IFNAME']} does not have {wanted['address']}")


def gc(conf):
    if "cni.dev/valid-attachments" not in conf:
        raise Refused(7, "the key cni.dev/valid-attachments is missing")
    valid = {tag(conf["name"], one["containerID"], one["ifname"])[0] for one in conf["cni.dev/valid-attachments"]}
    for alias, name in list(host_ends(conf["name"])):
        if alias not in valid:
            remove(name)


def serve(verb, env):
    if verb == "VERSION":
        return {"cniVersion": VERSIONS[-1], "supportedVersions": VERSIONS}
    if verb not in ("ADD", "DEL", "CHECK", "GC", "STATUS"):
        raise Refused(4, "CNI_COMMAND is not a verb")
    if verb in ("ADD", "DEL", "CHECK"):
        needed = ["CNI_CONTAINERID", "CNI_IFNAME"] + ["CNI_NETNS"] * (verb != "DEL")
        missing = [name for name in needed if not env.get(name)]
        if missing:
            raise Refused(4, f"{', '.join(missing)} missing")
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.\-]*", env["CNI_CONTAINERID"]):
            raise Refused(4, "CNI_CONTAINERID has invalid characters")
        if not re.fullmatch(r"(?!\.{1,2}$)[^/:\s]{1,15}", env["CNI_IFNAME"]):
            raise Refused(4, "CNI_IFNAME has invalid characters")
    try:
        conf = json.load(sys.stdin)
    except ValueError as error:
        raise Refused(6, f"decode the configuration: {error}") from error
    if not isinstance(conf, dict):
        raise Refused(6, "decode the configuration: it is not an object")
    if conf.get("cniVersion", "0.1.0") not in VERSIONS:
        raise Refused(1, f"version {conf.get('cniVersion')} is not supported")
    if not conf.get("name"):
        raise Refused(7, "the configuration has no name")
    if verb == "ADD":
        return add(conf, env)
    if verb == "DEL":
        remove(tag(conf["name"], env["CNI_CONTAINERID"], env["CNI_IFNAME"])[1])
    elif verb == "CHECK":
        check(conf, env)
    elif verb == "GC":
        gc(conf)
    return None


def main():
    try:
        result = serve(os.environ.get("CNI_COMMAND", ""), os.environ)
    except Refused as refused:
        code, message = refused.args
        print(json.dumps({"cniVersion": VERSIONS[-1], "code": code, "msg": message}))
        return 1
    except (KeyError, TypeError, ValueError, OSError) as error:
        print(json.dumps({"cniVersion": VERSIONS[-1], "code": 7, "msg": f"{type(error).__name__}: {error}"}))
        return 1
    if result is not None:
        print(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
