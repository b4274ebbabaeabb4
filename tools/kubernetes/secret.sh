#!/bin/sh
# Writes the secret of a machine in shards on Kubernetes, out of the folder of `tofu hosts init`:
#
#   tofu hosts init --dir demo tofu-0.tofu:7700 tofu-1.tofu:7700 tofu-2.tofu:7700 tofu-3.tofu:7700
#   ./secret.sh demo | kubectl apply -f -

set -eu
dir=$1
entry() {
    printf '%s\n    "%s": "%s"' "$comma" "$1" "$(base64 -w 0 < "$dir/$2")"
    comma=,
}
printf '{\n  "apiVersion": "v1",\n  "kind": "Secret",\n  "type": "Opaque",\n'
printf '  "metadata": { "name": "tofu-hosts" },\n  "data": {'
comma=
entry parts.toml parts.toml
entry authority.pem authority.pem
for shard in "$dir"/part-*; do
    shard=${shard##*/}
    for file in certificate.pem key.pem; do
        entry "$shard-$file" "$shard/$file"
    done
done
printf '\n  }\n}\n'
