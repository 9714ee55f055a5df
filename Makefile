# Builds and checks the project. `make help` lists the targets.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# All variables are defined here, before the first rule: make expands prerequisites when it reads them, and a
# variable that is defined below a rule is empty in its prerequisites. `make lint` checks this with
# scripts/check-makefile.

# These variables may be set in the environment, or after `make`.
XDG_CACHE_HOME ?=
# The project cache: the tools, the control plane and helm that are built here. It lies outside of the tree,
# so `make clean` keeps it.
CACHE ?= $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/clusterip-policy
# An absolute path, because recipes change the folder.
override CACHE := $(abspath $(CACHE))
# A folder with the Kubernetes programs to test on, instead of the programs that are built here.
KUBEBUILDER_ASSETS ?=
# A helm to test deploy/chart with, instead of the one that is built here.
HELM ?=
# Kubewarden's policy-server, and its kwctl, to test the policy in Kubewarden with. No package registry has them.
POLICY_SERVER ?=
KWCTL ?= kwctl
# The program that runs programs for Windows.
WINE ?= wine
FUZZ_SECONDS ?= 60
# The parts of `make bench-cluster`: all except `huge` if it is empty.
PARTS ?=
# How many times `make chaos` kills the program at work.
CHAOS ?= 100
# The nodes of `make cluster`, and the mode of kube-proxy: nftables or iptables. Without nodes, the control plane runs alone.
NODES ?= 2
WINDOWS_NODES ?= 0
PROXY ?= nftables
# Archives of images for the nodes of `make cluster`, with commas between them.
IMAGES ?=
# How many tests on a control plane run at once. They spend most of their time waiting.
E2E_THREADS ?= 8
# Which of the tests on a control plane run: those whose names contain one of these words. All if it is empty.
TESTS ?=

TOOLS := $(CACHE)/tools
CLUSTERIP := target/debug/clusterip
# The program that users install, and that the images contain.
RELEASED := target/release/clusterip
# The images of the tests.
TESTED := target/tested-images
WASM := target/wasm32-unknown-unknown/wasm/clusterip_policy.wasm
# Debian's mingw links for this target.
WINDOWS := x86_64-pc-windows-gnu

# Cargo unifies the features of the packages that are named together. Another selection of packages has other
# features, and rebuilds most of the dependencies. So the demo, the checks and the tests name all packages, and have the
# same profile: each dependency is compiled once.
ALL := --locked --workspace
XTASK := cargo run --quiet --locked --package xtask --

# Tools run for seconds: building them without optimisation saves minutes.
INSTALL := CARGO_PROFILE_RELEASE_OPT_LEVEL=0 CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=256 \
	CARGO_PROFILE_RELEASE_DEBUG=false cargo install --quiet --root $(TOOLS)

# Kubernetes is large: its programs are built once for each version, without debug information, and kept.
KUBERNETES := $(shell awk '$$1 == "k8s.io/kubernetes" {print $$2; exit}' e2e-tests/control-plane/go.mod)
CONTROL_PLANE_PROGRAMS := etcd kube-apiserver kube-controller-manager kubectl
# A cluster with nodes also needs these.
CLUSTER_PROGRAMS := kube-scheduler kubelet kube-proxy coredns pause
KUBERNETES_SOURCES := $(addprefix e2e-tests/control-plane/,go.mod go.sum \
	$(addsuffix /main.go,$(CONTROL_PLANE_PROGRAMS) $(CLUSTER_PROGRAMS)))
# The program of the image with which Kubernetes tests itself.
AGNHOST := k8s.io/kubernetes/test/images/agnhost
BUILT_ASSETS := $(CACHE)/control-plane/$(KUBERNETES)-$(shell cat $(KUBERNETES_SOURCES) | sha256sum | head -c 12)
ASSETS := $(abspath $(or $(KUBEBUILDER_ASSETS),$(BUILT_ASSETS)))
# The last program of a cluster with nodes that is built.
BUILT_CLUSTER := $(BUILT_ASSETS)/agnhost
CONTROL_PLANE := target/control-plane
# The environment of tests on a control plane.
ON_CONTROL_PLANE := CLUSTERIP_CONTROL_PLANE=$(CURDIR)/$(CONTROL_PLANE) KUBEBUILDER_ASSETS=$(ASSETS)
# Kubernetes' own tests of the network, and the program that runs several of them at once.
UPSTREAM_SOURCES := $(addprefix e2e-tests/control-plane/,go.mod go.sum conformance/conformance_test.go)
UPSTREAM_TESTS := $(CACHE)/conformance/$(KUBERNETES)-$(shell cat $(UPSTREAM_SOURCES) | sha256sum | head -c 12)
GINKGO := github.com/onsi/ginkgo/v2/ginkgo
# What a node needs besides, as scripts/programs names it. Its image for tests contains those from `curl` on.
NODE_PROGRAMS := containerd ctr runc ip nft iptables conntrack nsenter /usr/lib/cni/ptp curl dig nc nslookup ss wget
# The program that sends requests while Services move or the Service range changes.
LOAD := target/load
# The programs in images have no C library.
GO := CGO_ENABLED=0 go -C e2e-tests/control-plane
GO_BUILD := $(GO) build -buildvcs=false
# Without debug information, and with the version that `make` of Kubernetes writes into its programs.
KUBERNETES_NUMBERS := $(subst ., ,$(KUBERNETES:v%=%))
BUILD_KUBERNETES := $(GO_BUILD) -gcflags all=-dwarf=false -ldflags "-s -w \
	$(foreach package,k8s.io/component-base k8s.io/client-go/pkg,-X $(package)/version.gitVersion=$(KUBERNETES) \
	-X $(package)/version.gitMajor=$(word 1,$(KUBERNETES_NUMBERS)) -X $(package)/version.gitMinor=$(word 2,$(KUBERNETES_NUMBERS)))"

# The program is also tested on these versions of Kubernetes: the oldest one, which has no IPAddress, the first one that
# has, and the first one with MutatingAdmissionPolicy. etcd and kubectl are those of the control plane.
COMPATIBLE := v1.31.0 v1.33.13 v1.36.3
COMPATIBLE_SOURCES := $(addprefix e2e-tests/control-plane/,build-version kube-apiserver/main.go kube-controller-manager/main.go)
COMPATIBLE_BUILT := $(COMPATIBLE:%=$(CACHE)/control-plane/%-$(shell cat $(COMPATIBLE_SOURCES) | sha256sum | head -c 12))

# helm for the tests of deploy/chart, built once for each version from a Go module of its own.
HELM_BUILT := $(TOOLS)/helm-$(shell cat e2e-tests/helm/go.mod e2e-tests/helm/go.sum | sha256sum | head -c 12)
HELM_USED := $(or $(HELM),$(HELM_BUILT))
# The tests of `e2e` that run helm.
HELM_TESTS := deploy_chart:: gitops::helm_
# MetalLB's controller, its speaker and its manifests, built once, like helm, and the tests of `e2e` with the controller.
METALLB_BUILT := $(CACHE)/metallb/$(shell cat e2e-tests/metallb/go.mod e2e-tests/metallb/go.sum | sha256sum | head -c 12)
METALLB_TESTS := metallb::
# The tests of `e2e` that use all processors, or stop what they depend on: each would delay the others.
HEAVY_TESTS := tenants:: faults:: chaos:: lease_claims:: concurrent_creates:: fence::service_addresses:: fence::parser::

# Kubewarden's controller, audit scanner and charts, and a registry, are built once, like helm.
KUBEWARDEN := github.com/kubewarden/adm-controller
KUBEWARDEN_SOURCES := $(addprefix e2e-tests/kubewarden/,go.mod go.sum registry/main.go)
KUBEWARDEN_BUILT := $(CACHE)/kubewarden/$(shell cat $(KUBEWARDEN_SOURCES) | sha256sum | head -c 12)

.PHONY: help
help: ## List the targets
	@awk -F ':.*## ' '/^[a-z0-9.-]+:.*## / {printf "  %-21s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: policy.wasm ## Build policy.wasm and target/release/clusterip
	cargo build --quiet --release --locked --package clusterip

# The demo and the tests on a control plane run this program.
.PHONY: program
program: | toolchain
	cargo build --quiet $(ALL) --bin clusterip

# The measurements on a control plane run this program: it is optimized like that of `build`, with the features that
# `cargo bench` gives to its dependencies.
.PHONY: measured-program
measured-program: | toolchain
	cargo build --quiet --release $(ALL) --bin clusterip

.PHONY: toolchain
toolchain:
	@command -v cargo >/dev/null || { echo "cargo is missing: install rustup, see https://rustup.rs" >&2; exit 1; }
	@command -v cc >/dev/null || { test "$$(id -u)" = 0 && apt-get update -qq && apt-get install -y -qq gcc libc6-dev; } || \
		{ echo "cc is missing: sudo apt-get install gcc libc6-dev" >&2; exit 1; }

# cargo decides whether the module must be built again. The file is replaced only if its contents change: otherwise what
# is made from it would be made again without need.
.PHONY: force
policy.wasm: force | toolchain
	scripts/cargo-wasm build --quiet --locked --profile wasm --package clusterip-policy
	@cmp --silent $(WASM) $@ || cp $(WASM) $@

annotated-policy.wasm: policy.wasm force ## Write the metadata into policy.wasm
	@$(XTASK) annotate --metadata policy-metadata.yml --usage README.md --output $@ policy.wasm

.PHONY: oci
oci: annotated-policy.wasm ## Write target/oci, an OCI image layout of the annotated policy
	@$(XTASK) oci --output target/oci annotated-policy.wasm

.PHONY: images
images: build ## Write target/images: the images that deploy names, as OCI archives, and what they contain
	@scripts/install-programs buildah jq nft
	@scripts/images $(RELEASED) target/images

.PHONY: windows
windows: | toolchain ## Build the program for Windows
	@command -v x86_64-w64-mingw32-gcc >/dev/null || { echo "mingw is missing: apt-get install gcc-mingw-w64-x86-64" >&2; exit 1; }
	@rustup target add $(WINDOWS) 2>/dev/null || { echo "rustup can't add the target $(WINDOWS)" >&2; exit 1; }
	cargo build --quiet --release --locked --package clusterip --bin clusterip --target $(WINDOWS)

.PHONY: demo
demo: policy.wasm program ## Build the module and the program quickly, plan the Services of examples/shop, and ask the module about one
	$(CLUSTERIP) plan examples/shop --settings examples/settings/k2s.yaml
	$(CLUSTERIP) evaluate --module policy.wasm --request examples/requests/cart.yaml \
		--settings examples/settings/k2s.yaml --snapshot examples/shop --output text

# The tests of the other packages need policy.wasm, or take longer, and so do the exploration of moves with a second leader
# and the longest simulation of agents: `make test` runs them.
.PHONY: check
check: | toolchain ## Format and check all code, and test the core, moves and failover: the loop while you work
	cargo fmt --all
	cargo check --quiet $(ALL) --all-targets
	cargo test --quiet --locked --package clusterip-core --package clusterip-moves --package clusterip-failover -- \
		--skip every_interleaving_with_a_second_leader --skip addresses_that_no_node_can_hold_move_ever_more_rarely

.PHONY: test
test: ## Run the tests of all packages, and those on a real API server
	@CLOSING='`make test-all` adds the tests with a browser, packets, Pods, images, helm, promtool and Kubewarden.' \
		scripts/run-parts policy.wasm control-plane test-native e2e-tests

.PHONY: test-all
test-all: ## Run all tests; with REQUIRE_ALL=1 a skipped test fails
	@scripts/run-parts policy.wasm control-plane test-native e2e-tests \
		test-rules test-map test-chart test-metallb test-images test-external test-pods test-kubewarden test-sessions

.PHONY: test-native
test-native: policy.wasm ## Run the tests that need no control plane
	cargo test $(ALL) --no-fail-fast

# For root, missing programs are installed. Other users get a message that names them.
.PHONY: test-map
test-map: | toolchain ## Test the map in a headless chromium, if it is installed
	@if scripts/install-programs chromium node npm; then \
		cargo build --quiet $(ALL) --example map; \
		npm --prefix e2e-tests/map ci --silent --no-audit --no-fund; \
		CLUSTERIP_MAPS=$(CURDIR)/target/debug/examples/map npm --prefix e2e-tests/map --silent test; \
	else \
		scripts/skip chromium "the tests of the map in a browser need chromium and npm: sudo apt-get install chromium nodejs npm"; \
	fi

.PHONY: e2e-tests
e2e-tests: policy.wasm program control-plane ## Test on a real control plane; TESTS (all) selects tests
	go -C e2e-tests/control-plane test -v ./load
	@failed=; \
	for tests in $(if $(TESTS),'$(E2E_THREADS) $(TESTS)','$(E2E_THREADS) $(HEAVY_TESTS:%=--skip %)' '3 $(HEAVY_TESTS)'); do \
		$(ON_CONTROL_PLANE) scripts/test-again cargo test $(ALL) --test e2e -- $(patsubst %,--skip %,$(HELM_TESTS) $(METALLB_TESTS)) \
			--test-threads $$tests || \
			failed=yes; \
	done; test -z "$$failed"

.PHONY: test-chart
test-chart: program control-plane $(HELM_USED) ## Test deploy/chart, and Services of other charts, with helm
	CLUSTERIP_HELM=$(HELM_USED) KUBEBUILDER_ASSETS=$(ASSETS) cargo test $(ALL) --test chart
	CLUSTERIP_HELM=$(HELM_USED) $(ON_CONTROL_PLANE) cargo test $(ALL) --test e2e -- $(HELM_TESTS)

.PHONY: test-metallb
test-metallb: program control-plane $(METALLB_BUILT) ## Test external addresses that the controller of MetalLB announces
	CLUSTERIP_METALLB=$(METALLB_BUILT) $(ON_CONTROL_PLANE) cargo test $(ALL) --test e2e -- $(METALLB_TESTS)

.PHONY: test-sessions
test-sessions: policy.wasm program ## Replay the sessions with kwctl, if it is installed
	@if command -v "$${KWCTL:-kwctl}" >/dev/null; then \
		command -v bats >/dev/null || { echo "bats is missing: apt-get install bats" >&2; exit 1; }; \
		command -v jq >/dev/null || { echo "jq is missing: apt-get install jq" >&2; exit 1; }; \
		bats --tap e2e-tests/sessions.bats; \
	else \
		scripts/skip kwctl "e2e-tests/sessions.bats needs kwctl; \`cargo test\` replayed the same sessions"; \
	fi

# For root, missing programs are installed. For other users, the tests are ignored and name the missing programs.
.PHONY: test-external
test-external: program control-plane ## Test external addresses with real packets, between network namespaces
	@scripts/install-programs ip nft || true
	cargo test $(ALL) --test packets
	$(ON_CONTROL_PLANE) \
		cargo test $(ALL) --test external

# Pods run images like those that users get, with the program of the other tests: it is built already, and building the
# optimized one takes longer than all tests with Pods. If the programs that build images are missing, the tests must not
# find images of an older program.
.PHONY: tested-images
tested-images: program
	@rm -rf $(TESTED)
	@if scripts/install-programs buildah jq nft; then \
		mkdir -p $(TESTED); \
		strip -o $(TESTED)/program $(CLUSTERIP); \
		scripts/images $(TESTED)/program $(TESTED); \
	fi

# For other users than root, the tests are ignored, as those of test-external.
.PHONY: test-pods
test-pods: tested-images cluster-programs load $(HELM_USED) $(METALLB_BUILT) ## Test the deployments with real Pods, in a cluster with two nodes
	@scripts/install-programs $(NODE_PROGRAMS) || true
	$(ON_CONTROL_PLANE) CLUSTERIP_HELM=$(HELM_USED) CLUSTERIP_METALLB=$(METALLB_BUILT) \
		CLUSTERIP_IMAGES=$(CURDIR)/$(TESTED) CLUSTERIP_LOAD=$(CURDIR)/$(LOAD) cargo test $(ALL) --test pods

# For other users than root, the tests are ignored, as those of test-pods.
.PHONY: test-kubewarden
test-kubewarden: $(if $(POLICY_SERVER),program cluster-programs annotated-policy.wasm $(HELM_USED) $(KUBEWARDEN_BUILT)) ## Test the policy in Kubewarden; POLICY_SERVER and KWCTL (kwctl) are the paths of its programs
	@if test -z "$(POLICY_SERVER)"; then \
		scripts/skip policy-server "the tests of Kubewarden need POLICY_SERVER and KWCTL, the paths of its policy-server and kwctl"; \
		exit; \
	fi; \
	command -v "$(KWCTL)" >/dev/null || { echo "kwctl is missing: set KWCTL to its path" >&2; exit 1; }; \
	scripts/install-programs $(NODE_PROGRAMS) || true; \
	export $(ON_CONTROL_PLANE) CLUSTERIP_HELM=$(HELM_USED); \
	export CLUSTERIP_KUBEWARDEN=$(KUBEWARDEN_BUILT) POLICY_SERVER=$(abspath $(POLICY_SERVER)) KWCTL; \
	KWCTL=$$(realpath "$$(command -v "$(KWCTL)")"); \
	cargo test $(ALL) --test kubewarden

.PHONY: conformance
conformance: tested-images cluster-programs $(UPSTREAM_TESTS) ## Run Kubernetes' own tests of Services without clusterip, and with one and three replicas
	@scripts/install-programs $(NODE_PROGRAMS) || true
	$(ON_CONTROL_PLANE) \
		CLUSTERIP_IMAGES=$(CURDIR)/$(TESTED) CLUSTERIP_UPSTREAM_TESTS=$(UPSTREAM_TESTS) \
		cargo bench --quiet $(ALL) --bench conformance

.PHONY: chaos
chaos: program control-plane ## Kill the program CHAOS (100) times while it works, and what it depends on, and print the results
	for tests in chaos:: faults:: seamless_moves::interruptions:: renumber::interruptions::; do \
		CHAOS=$(CHAOS) $(ON_CONTROL_PLANE) \
			cargo test $(ALL) --test e2e -- --nocapture $$tests; \
	done

# For root, missing programs are installed. Other users get a message that names them.
.PHONY: cluster
cluster: build $(if $(filter 0,$(NODES)),control-plane,cluster-programs) ## Run a cluster with NODES (2) nodes on this machine until Ctrl-C, and print how to use it
	@if test $(NODES) = 0; then \
		exec $(CONTROL_PLANE) -assets $(ASSETS) -folder target/cluster \
			$$(test ! -x $(ASSETS)/kube-controller-manager || echo -controller-manager); \
	fi; \
	scripts/install-programs $(NODE_PROGRAMS) || { echo "\`make cluster NODES=0\` runs the control plane alone" >&2; exit 1; }; \
	exec $(CONTROL_PLANE) -assets $(ASSETS) -folder target/cluster -nodes $(NODES) -windows-nodes $(WINDOWS_NODES) \
		-proxy-mode $(PROXY) -images "$(IMAGES)"

.PHONY: control-plane
control-plane: $(if $(KUBEBUILDER_ASSETS),,$(BUILT_ASSETS)) | go ## Build the control plane, or use that of KUBEBUILDER_ASSETS
	@$(GO_BUILD) -o $(CURDIR)/$(CONTROL_PLANE) ./control-plane

$(HELM_BUILT): | go
	@echo "building helm for the tests, once: some minutes"
	@mkdir -p $(@D)
	@partial=$$(mktemp $@.XXXXXX); trap 'rm -f "$$partial"' EXIT; \
	go -C e2e-tests/helm build -buildvcs=false -gcflags all=-dwarf=false -ldflags "-s -w" -o "$$partial" helm.sh/helm/v4/cmd/helm; \
	mv "$$partial" $@

# Built in a temporary folder, like helm. The manifests are in the same module.
$(METALLB_BUILT): | go
	@echo "building the controller and the speaker of MetalLB for the tests, once: some minutes"
	@mkdir -p $(@D)
	@partial=$$(mktemp --directory $@.XXXXXX); trap 'rm -rf "$$partial"' EXIT; \
	CGO_ENABLED=0 go -C e2e-tests/metallb build -buildvcs=false -o "$$partial/" -gcflags all=-dwarf=false -ldflags "-s -w" \
		go.universe.tf/metallb/controller go.universe.tf/metallb/speaker; \
	config=$$(go -C e2e-tests/metallb list -m -f '{{.Dir}}' go.universe.tf/metallb)/config; \
	cp -r --no-preserve=mode "$$config/crd/bases" "$$partial/crds"; \
	cp --no-preserve=mode "$$config/manifests/metallb-native.yaml" "$$partial/"; \
	mv --no-target-directory "$$partial" $@ 2>/dev/null || test -x $@/speaker

# Built in a temporary folder, like helm. The charts are in the module of the controller.
$(KUBEWARDEN_BUILT): | go
	@echo "building the controller and the audit scanner of Kubewarden, and a registry, for the tests, once: some minutes"
	@mkdir -p $(@D)
	@partial=$$(mktemp --directory $@.XXXXXX); trap 'rm -rf "$$partial"' EXIT; \
	for program in $(KUBEWARDEN)/cmd/controller $(KUBEWARDEN)/cmd/audit-scanner ./registry; do \
		CGO_ENABLED=0 go -C e2e-tests/kubewarden build -buildvcs=false -o "$$partial/" -gcflags all=-dwarf=false -ldflags "-s -w" "$$program"; \
	done; \
	cp -r --no-preserve=mode "$$(go -C e2e-tests/kubewarden list -m -f '{{.Dir}}' $(KUBEWARDEN))/charts" "$$partial/charts"; \
	mv --no-target-directory "$$partial" $@ 2>/dev/null || test -x $@/registry

.PHONY: go
go:
	@command -v go >/dev/null || { echo "go is missing: curl -sSL https://go.dev/dl/go1.26.8.linux-amd64.tar.gz | sudo tar -C /usr/local -xz, and put /usr/local/go/bin into PATH" >&2; exit 1; }

# Also what the nodes of a cluster run.
.PHONY: cluster-programs
cluster-programs: control-plane $(if $(KUBEBUILDER_ASSETS),,$(BUILT_CLUSTER))

# An interrupted build leaves nothing behind. If two builds run at the same time, the first result is kept.
$(BUILT_ASSETS): | go
	@echo "building the control plane of Kubernetes $(KUBERNETES) for the tests, once: 8 to 12 minutes on two cores"
	@mkdir -p $(@D)
	@partial=$$(mktemp --directory $@.XXXXXX); trap 'rm -rf "$$partial"' EXIT; \
	$(BUILD_KUBERNETES) -o "$$partial/" $(CONTROL_PLANE_PROGRAMS:%=./%); \
	mv --no-target-directory "$$partial" $@ 2>/dev/null || test -x $@/kubectl

# agnhost comes last, because it says that all are there.
$(BUILT_CLUSTER): | go $(BUILT_ASSETS)
	@echo "building the programs of Kubernetes $(KUBERNETES) for nodes, once: some minutes"
	@partial=$$(mktemp --directory $(BUILT_ASSETS).XXXXXX); trap 'rm -rf "$$partial"' EXIT; \
	$(BUILD_KUBERNETES) -o "$$partial/" $(CLUSTER_PROGRAMS:%=./%) $(AGNHOST); \
	mv $(CLUSTER_PROGRAMS:%="$$partial"/%) $(@D)/; \
	mv "$$partial/$(@F)" $@

# As above. The control plane is built first, because each build uses all processors.
$(UPSTREAM_TESTS): | go control-plane
	@echo "building the tests of Kubernetes $(KUBERNETES), once: 5 minutes on two cores"
	@mkdir -p $(@D)
	@partial=$$(mktemp --directory $@.XXXXXX); trap 'rm -rf "$$partial"' EXIT; \
	without_debug=(-gcflags all=-dwarf=false -ldflags "-s -w"); \
	$(GO) test -c -vet=off -buildvcs=false -o "$$partial/conformance.test" "$${without_debug[@]}" ./conformance; \
	$(GO_BUILD) -o "$$partial/" "$${without_debug[@]}" $(GINKGO); \
	mv --no-target-directory "$$partial" $@ 2>/dev/null || test -x $@/ginkgo

# A cluster can be renumbered since Kubernetes 1.34.
.PHONY: test-compat
test-compat: program control-plane $(COMPATIBLE_BUILT) ## Test on all supported versions of Kubernetes; the first run builds them, which takes 20 minutes each
	@failed=; for assets in $(COMPATIBLE_BUILT) $(BUILT_ASSETS); do \
		echo "== Kubernetes $$(basename $$assets)"; \
		case $$(basename $$assets) in v1.31.*|v1.33.*) later='--skip renumber::';; *) later=;; esac; \
		CLUSTERIP_CONTROL_PLANE=$(CURDIR)/$(CONTROL_PLANE) KUBEBUILDER_ASSETS=$$assets \
			cargo test --quiet $(ALL) --test e2e -- $(patsubst %,--skip %,$(HELM_TESTS) $(METALLB_TESTS)) $$later || \
			failed="$$failed $$(basename $$assets)"; \
	done; \
	test -z "$$failed" || { echo "failed on$$failed" >&2; exit 1; }

# An interrupted build leaves nothing behind, as above.
$(CACHE)/control-plane/v1.%: | go $(BUILT_ASSETS)
	@version=$(firstword $(subst -, ,$(@F))); echo "building Kubernetes $$version for the tests, once: 20 minutes on two cores"; \
	partial=$$(mktemp --directory $@.XXXXXX); trap 'rm -rf "$$partial"' EXIT; \
	e2e-tests/control-plane/build-version "$$version" "$$partial"; \
	cp $(BUILT_ASSETS)/etcd $(BUILT_ASSETS)/kubectl "$$partial/"; \
	mv --no-target-directory "$$partial" $@ 2>/dev/null || test -x $@/kubectl

.PHONY: test-rules
test-rules: ## Test the alerts with Prometheus' own program, promtool (PROMTOOL names another)
	@if command -v "$${PROMTOOL:-promtool}" >/dev/null || scripts/install-programs promtool; then \
		mkdir -p target/rules; \
		sed -e '1,/^spec:/d' -e 's/^  //' deploy/monitoring/prometheus-rule.yaml > target/rules/clusterip.rules.yaml; \
		cp deploy/monitoring/rules-test.yaml target/rules/; \
		cd target/rules; \
		"$${PROMTOOL:-promtool}" check rules clusterip.rules.yaml; \
		"$${PROMTOOL:-promtool}" test rules rules-test.yaml; \
	else \
		scripts/skip promtool "the tests of the alerts need promtool: sudo apt-get install prometheus"; \
	fi

.PHONY: test-images
test-images: tested-images ## Build the images twice, compare them, and run their programs, if buildah is installed
	@if test -d $(TESTED); then \
		CLUSTERIP_IMAGES=$(CURDIR)/$(TESTED) CLUSTERIP_PROGRAM=$(CURDIR)/$(TESTED)/program \
			cargo test $(ALL) --test images; \
	else \
		scripts/skip buildah "the tests of the images need buildah: sudo apt-get install buildah nftables"; \
	fi

.PHONY: test-windows
test-windows: windows ## Run the program for Windows under wine 9 or newer, and compare its plan
	@command -v $(WINE) >/dev/null || { echo "wine is missing: apt-get install wine wine64" >&2; exit 1; }
	@for format in table json yaml; do \
		expected=crates/clusterip/tests/golden/shop.$${format/table/txt}; \
		WINEDEBUG=-all $(WINE) target/$(WINDOWS)/release/clusterip.exe plan examples/shop \
			--settings examples/settings/k2s.yaml --output $$format | diff - "$$expected"; \
	done

.PHONY: bench
bench: build ## Print the figures
	cargo bench --quiet $(ALL) --bench figures

.PHONY: bench-scale
bench-scale: build ## Print the figures of `clusterip plan` and `clusterip audit` for 100,000 Services
	cargo bench --quiet $(ALL) --bench figures -- scale

.PHONY: bench-cluster
bench-cluster: measured-program control-plane ## Print the figures of `clusterip serve` on a real control plane, in PAIRS (7) rounds
	cargo build --quiet --release $(ALL) --example least_webhook
	$(ON_CONTROL_PLANE) \
		cargo bench --quiet $(ALL) --bench cluster -- $(PARTS)

.PHONY: bench-moves
bench-moves: measured-program cluster-programs load ## Print how many requests fail while Services move, with kube-proxy in mode PROXY
	@scripts/install-programs $(NODE_PROGRAMS) || true
	PROXY=$(PROXY) CLUSTERIP_LOAD=$(CURDIR)/$(LOAD) CLUSTERIP_CONTROL_PLANE=$(CURDIR)/$(CONTROL_PLANE) \
		KUBEBUILDER_ASSETS=$(ASSETS) cargo bench --quiet $(ALL) --bench moves

.PHONY: bench-renumber
bench-renumber: measured-program cluster-programs load ## Print how many requests fail while the Service range changes, with kube-proxy in mode PROXY
	@scripts/install-programs $(NODE_PROGRAMS) || true
	PROXY=$(PROXY) CLUSTERIP_LOAD=$(CURDIR)/$(LOAD) CLUSTERIP_CONTROL_PLANE=$(CURDIR)/$(CONTROL_PLANE) \
		KUBEBUILDER_ASSETS=$(ASSETS) cargo bench --quiet $(ALL) --bench renumber

.PHONY: load
load: | go
	@$(GO_BUILD) -o $(CURDIR)/$(LOAD) ./load

.PHONY: fuzz
fuzz: $(TOOLS)/bin/cargo-fuzz ## Fuzz every parser of outside input, FUZZ_SECONDS (60) each
	@for target in $$(cd fuzz/fuzz_targets && ls *.rs); do \
		echo "== $${target%.rs}"; \
		RUSTC_BOOTSTRAP=1 $(TOOLS)/bin/cargo-fuzz run "$${target%.rs}" -- -max_total_time=$(FUZZ_SECONDS) -max_len=16384 -verbosity=0 -print_funcs=0 -print_final_stats=1; \
	done

$(TOOLS)/bin/cargo-fuzz:
	$(INSTALL) cargo-fuzz

.PHONY: book
book: ## Build the documentation as a book, with mdbook
	@command -v mdbook >/dev/null || { echo "mdbook is missing: cargo install mdbook" >&2; exit 1; }
	mdbook build

# Uses the profile and the packages of the tests, so that both share the build of build scripts and macros.
# Go vets with the flags of the build, so that it compiles Kubernetes once.
.PHONY: lint
lint: $(TOOLS)/bin/cargo-deny | go ## Check format, lints and dependencies
	@cargo fmt --version >/dev/null || { echo "rustfmt is missing: rustup component add rustfmt" >&2; exit 1; }
	@cargo clippy --version >/dev/null || { echo "clippy is missing: rustup component add clippy" >&2; exit 1; }
	scripts/check-makefile
	cargo fmt --all --check
	cargo clippy --quiet $(ALL) --all-targets -- -D warnings
	cargo clippy --quiet $(ALL) --test e2e --test external --test pods --test kubewarden --test chart --test images -- -D warnings
	RUSTDOCFLAGS='-D warnings' cargo doc --quiet $(ALL) --no-deps
	@cargo metadata --quiet --locked --format-version 1 --manifest-path fuzz/Cargo.toml >/dev/null || \
		{ echo "fuzz/Cargo.lock does not fit the crates: cargo check --manifest-path fuzz/Cargo.toml" >&2; exit 1; }
	$(TOOLS)/bin/cargo-deny --log-level error check bans licenses sources
	@unformatted=$$(gofmt -l e2e-tests/control-plane e2e-tests/kubewarden); test -z "$$unformatted" || { echo "not formatted: $$unformatted" >&2; exit 1; }
	$(GO) vet -gcflags all=-dwarf=false ./control-plane ./load

$(TOOLS)/bin/cargo-deny:
	$(INSTALL) cargo-deny

.PHONY: fmt
fmt: ## Format the code
	cargo fmt --all
	gofmt -w e2e-tests/control-plane e2e-tests/kubewarden

.PHONY: clean
clean: ## Remove what was built, but keep the cache
	cargo clean --quiet
	rm -f policy.wasm annotated-policy.wasm
