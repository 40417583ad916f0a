#!/bin/sh
# A CNI plugin in shell: sets `lo` up, as the plugin loopback does. The conformance tests run it.

versions='"0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"'
conf=$(cat)

fail() { # CODE MESSAGE
    printf '{"cniVersion": "1.1.0", "code": %s, "msg": "%s"}\n' "$1" "$2"
    exit 1
}

in_container() { nsenter --net="$CNI_NETNS" "$@" >/dev/null 2>&1; }

[ "$CNI_COMMAND" != VERSION ] || { printf '{"cniVersion": "1.1.0", "supportedVersions": [%s]}\n' "$versions"; exit 0; }
case $CNI_COMMAND in
ADD | DEL | CHECK)
    [ -n "$CNI_CONTAINERID" ] || fail 4 "CNI_CONTAINERID is missing"
    [ -n "$CNI_IFNAME" ] || fail 4 "CNI_IFNAME is missing"
    case $CNI_CONTAINERID in *[!a-zA-Z0-9_.-]* | [!a-zA-Z0-9]*) fail 4 "CNI_CONTAINERID has invalid characters" ;; esac
    case $CNI_IFNAME in */* | *:* | *' '* | . | ..) fail 4 "CNI_IFNAME has invalid characters" ;; esac
    [ "$CNI_COMMAND" = DEL ] || [ -n "$CNI_NETNS" ] || fail 4 "CNI_NETNS is missing"
    ;;
GC | STATUS) ;;
*) fail 4 "CNI_COMMAND is not a verb" ;;
esac
# Two lines of JSON: `cniVersion` and `name`, or null if a key is not a text.
keys=$(printf %s "$conf" | jq -c 'if type == "object" then .cniVersion, .name | strings // null else error end' 2>/dev/null)
[ -n "$keys" ] || fail 6 "the configuration is not a JSON object"
{ read -r version; read -r name; } <<END
$keys
END
case $version in null) version=0.1.0 ;; *) version=${version#\"} version=${version%\"} ;; esac
case $versions in *"\"$version\""*) ;; *) fail 1 "version $version is not supported" ;; esac
[ "$name" != null ] || fail 7 "the configuration has no name"

case $CNI_COMMAND in
ADD)
    in_container ip link set lo up || fail 100 "lo cannot be set up in CNI_NETNS"
    of4='' of6=''
    case $version in 0.*) of4='"version": "4", ' of6='"version": "6", ' ;; esac
    printf '{"cniVersion": "%s", "interfaces": [{"name": "lo", "mac": "00:00:00:00:00:00", "sandbox": "%s"}], "ips": [' "$version" "$CNI_NETNS"
    printf '{%s"address": "127.0.0.1/8", "interface": 0}, {%s"address": "::1/128", "interface": 0}]}\n' "$of4" "$of6"
    ;;
DEL) in_container ip link set lo down ;;
CHECK) in_container sh -c 'ip link show lo | grep -q "[<,]UP[,>]"' || fail 102 "lo is not up" ;;
esac
exit 0
