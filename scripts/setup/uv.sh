#!/usr/bin/env bash
# .venv's uv with what pip was told and the system trusts, neither of which uv reads by itself: an
# index of one's own, folders of wheels (a CPU build of torch saves gigabytes), and the certificates
# of a proxy. uv's own variables win.
set -euo pipefail
venv=$(dirname "$0")/../../.venv

pip_setting() { sed -n "s/^[^=]*\.$1='\(.*\)'\$/\1/p" <<< "$pip_settings" | tail -n 1; }
pip_settings=$("$venv/bin/python" -m pip config list)
index=$(pip_setting index-url)
links=$(pip_setting find-links | sed 's/\\n/ /g; s/^ *//; s/  */,/g')
[ -z "$index" ] || export UV_DEFAULT_INDEX=${UV_DEFAULT_INDEX-$index}
[ -z "$links" ] || export UV_FIND_LINKS=${UV_FIND_LINKS-$links}
for authorities in /etc/ssl/certs/ca-certificates.crt /etc/pki/tls/certs/ca-bundle.crt; do
    [ ! -s $authorities ] || export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS-1}
done
export UV_HTTP_TIMEOUT=${UV_HTTP_TIMEOUT-180}
exec "$venv/bin/uv" "$@"
