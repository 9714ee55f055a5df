#!/usr/bin/env bats
# Replays the recorded sessions through kwctl, and runs the kwctl commands of docs/evaluate.md. README.md beside this
# file describes the files of a session.

# The only kind in the sessions that the metadata of the policy does not list.
CUSTOM_KIND='  - apiVersion: argoproj.io/v1alpha1\n    kind: Rollout'

setup_file() {
    export KWCTL="${KWCTL:-kwctl}" ROOT
    ROOT="$(cd "$BATS_TEST_DIRNAME/.." && pwd)"
    command -v "$KWCTL" >/dev/null || return 0

    # kwctl grants a module the kinds that its own metadata names.
    sed "s|^contextAwareResources:|&\n$CUSTOM_KIND|" "$ROOT/policy-metadata.yml" >"$BATS_FILE_TMPDIR/metadata.yml"
    export MODULE="$BATS_FILE_TMPDIR/annotated-policy.wasm"
    "$KWCTL" annotate -m "$BATS_FILE_TMPDIR/metadata.yml" -u "$ROOT/README.md" -o "$MODULE" "$ROOT/policy.wasm"
}

# Skips a test, or fails it with REQUIRE_ALL=1.
missing() {
    "$ROOT/scripts/skip" "$1" "$2" || return 1
    skip "$2"
}

setup() {
    command -v "$KWCTL" >/dev/null || missing kwctl "kwctl is missing: put it into PATH, or set KWCTL to its path"
}

# Prints the response to the request of a folder, with its patch decoded. Further arguments go to kwctl.
response() {
    local folder="$1"
    shift
    "$KWCTL" run --request-path "$folder/request.json" --settings-path "$folder/settings.json" \
        --replay-host-capabilities-interactions "$folder/session.yml" "$@" "$MODULE" 2>"$(log "$folder")" |
        jq 'if .patch then .patch |= (@base64d | fromjson) else . end'
}

log() {
    echo "$BATS_FILE_TMPDIR/$(basename "$1").log"
}

# Prints how the response differs from response.json, and whether exchanges of the session were not used.
compare() {
    local folder="$1" expected found
    expected="$(jq -S . "$folder/response.json")"
    found="$(response "$folder" --allow-context-aware | jq -S .)"
    if [ "$expected" != "$found" ]; then
        echo "$(basename "$folder"): expected <, found >"
        diff <(echo "$expected") <(echo "$found")
    fi
    if grep --quiet 'have not been replayed' "$(log "$folder")"; then
        echo "$(basename "$folder"): exchanges at the end of session.yml were not used"
    fi
}

@test "kwctl gives the expected response to every session" {
    export -f compare response log
    local folders=("$ROOT"/e2e-tests/sessions/*/)
    [ "${#folders[@]}" -gt 50 ]
    run xargs -n 1 -P "$(nproc)" bash -c 'compare "${1%/}"' compare < <(printf '%s\n' "${folders[@]}")
    echo "$output"
    [ "$status" -eq 0 ]
    [ -z "$output" ]
}

@test "a kind that kwctl does not grant is named in the denial" {
    run response "$ROOT/e2e-tests/sessions/evidence-from-a-deployment"
    echo "$output"
    [ "$(jq .allowed <<<"$output")" = false ]
    [[ "$(jq -r .status.message <<<"$output")" == "Service shop/web: no permission to read apps/v1/Deployment: "* ]]
}

@test "a host call that kwctl does not grant is named in the denial" {
    run response "$ROOT/e2e-tests/sessions/evidence-from-a-deployment" --allow-context-aware \
        --allowed-host-capabilities=kubernetes/get_resource
    echo "$output"
    [ "$(jq .allowed <<<"$output")" = false ]
    [[ "$(jq -r .status.message <<<"$output")" == *"'kubernetes/list_resources_all' host capability"* ]]
}

@test "kwctl refuses settings with a mistake, and says where" {
    echo '{"services": {"ordr": "lowest"}}' >"$BATS_TEST_TMPDIR/settings.json"
    run "$KWCTL" run --request-path "$ROOT/e2e-tests/sessions/leave-headless/request.json" \
        --settings-path "$BATS_TEST_TMPDIR/settings.json" "$MODULE"
    echo "$output"
    [ "$status" -ne 0 ]
    [[ "$output" == *'services.ordr: unknown key "ordr": did you mean order?'* ]]
}

# Prints the kwctl commands of docs/evaluate.md that need only files of this repository, one per line.
documented_commands() {
    awk '
        /^```/ { inside = /^```console/ }
        inside && /^\$ kwctl (annotate|run) / { wanted = 1; sub(/^\$ /, "") }
        wanted { wanted = sub(/\\$/, ""); printf "%s%s", $0, wanted ? "" : "\n" }
    ' "$ROOT/docs/evaluate.md"
}

@test "the kwctl commands of docs/evaluate.md give the responses that are written beside the sessions" {
    # The commands run unchanged, in a copy of the files that they use, so that nothing is written into the repository.
    cd "$BATS_TEST_TMPDIR"
    cp "$ROOT/policy.wasm" "$ROOT/policy-metadata.yml" "$ROOT/README.md" .
    cp "$MODULE" annotated-policy.wasm
    ln -s "$ROOT/e2e-tests" e2e-tests
    kwctl() { command "$KWCTL" "$@"; }
    local commands
    commands="$(documented_commands)"
    echo "$commands"
    [ "$(grep --count '^kwctl run ' <<<"$commands")" -ge 1 ]
    local session line
    while read -r line; do
        eval "$line" >output 2>log || { cat log; return 1; }
        case "$line" in
            "kwctl run "*)
                session="$(grep --only-matching 'e2e-tests/sessions/[^/]*' <<<"$line" | head -n 1)"
                diff <(jq -S . "$session/response.json") \
                    <(jq -S 'if .patch then .patch |= (@base64d | fromjson) else . end' output)
                ;;
        esac
    done <<<"$commands"
}

# Replays with kwctl what `clusterip evaluate` records for a folder: both answers must be equal. kwctl prints audit
# annotations in any order.
compare_recorded() {
    local folder="$1" name expected found
    name="$(basename "$1")"
    mkdir -p "$BATS_TEST_TMPDIR/$name"
    cp "$folder/request.json" "$folder/settings.json" "$BATS_TEST_TMPDIR/$name"
    expected="$("$CLUSTERIP" evaluate --request "$folder/request.json" --settings "$folder/settings.json" \
        --snapshot "$folder/cluster.yaml" --record "$BATS_TEST_TMPDIR/$name/session.yml" -o decoded 2>/dev/null)"
    found="$(response "$BATS_TEST_TMPDIR/$name" --allow-context-aware | jq -S .)"
    [ "$expected" = "$found" ] || diff <(echo "$name"; echo "$expected") <(echo "$found")
}

@test "kwctl and clusterip evaluate give the same answer to recorded sessions" {
    export CLUSTERIP="${CLUSTERIP:-$ROOT/target/debug/clusterip}"
    [ -x "$CLUSTERIP" ] || missing clusterip "clusterip is missing: run make program, or set CLUSTERIP to its path"
    export -f compare_recorded response log
    local clusters=("$ROOT"/e2e-tests/sessions/*/cluster.yaml)
    [ "${#clusters[@]}" -gt 50 ]
    run xargs -n 1 -P "$(nproc)" bash -c 'compare_recorded "${1%/cluster.yaml}"' compare_recorded \
        < <(printf '%s\n' "${clusters[@]}")
    echo "$output"
    [ "$status" -eq 0 ]
    [ -z "$output" ]
}
