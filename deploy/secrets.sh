#!/bin/sh
# Random passwords for docker-compose.yml, in .env (mode 0600, not in git). What is there already stays.
set -eu
umask 077
file=${1:-$(dirname "$0")/../.env}
touch "$file"
chmod 600 "$file"
for name in POSTGRES_PASSWORD VALKEY_PASSWORD STEADYRUN_JWT_SECRET GRAFANA_PASSWORD; do
    grep -q "^$name=." "$file" && continue
    value=$(head -c 32 /dev/urandom | od -An -v -tx1 | tr -d ' \n')
    [ "${#value}" = 64 ] || { echo "secrets: no randomness" >&2; exit 1; }
    printf '%s=%s\n' "$name" "$value" >>"$file"
done
