#!/usr/bin/env bash
# .venv's uv with what pip was told and the system trusts, neither of which uv reads by itself: an
# index of one's own, folders of wheels (a CPU build of torch saves gigabytes), a proxy and its
# certificates. uv's own variables win.
set -euo pipefail
venv=$(dirname "$0")/../../.venv

pip_setting() { # of several words: with a space between them
    sed -n "s/^[^=]*\.$1='\(.*\)'\$/\1/p" <<< "$pip_settings" | tail -n 1 |
        sed 's/\\n/ /g; s/^ *//; s/  */ /g'
}
pip_settings=$("$venv/bin/python" -m pip config list)
tell() { # UV'S_VARIABLE VALUE
    [ -z "$2" ] || [ -n "${!1+set}" ] || export "$1=$2"
}
tell UV_DEFAULT_INDEX "$(pip_setting index-url)"
tell UV_FIND_LINKS "$(pip_setting find-links | tr ' ' ,)"
tell UV_INSECURE_HOST "$(pip_setting trusted-host)"
tell SSL_CERT_FILE "$(pip_setting cert)"
tell HTTP_PROXY "$(pip_setting proxy)"
tell HTTPS_PROXY "$(pip_setting proxy)"
case $(pip_setting no-index) in 1 | [Tt]rue | [Yy]es | [Oo]n) tell UV_NO_INDEX 1 ;; esac
for authorities in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt; do
    [ ! -s $authorities ] || tell UV_SYSTEM_CERTS 1
done
tell UV_HTTP_TIMEOUT 180
exec "$venv/bin/uv" "$@"
