# `make` lists what there is to do.
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help

# rdma-sys' bindgen needs libclang 14; a newer one beside it would be taken and fail.
export LIBCLANG_PATH ?= /usr/lib/llvm-14/lib
CACHE := $(or $(XDG_CACHE_HOME),$(HOME)/.cache)/gdr-agent
DENY := $(CACHE)/cargo-deny-0.20.2/bin/cargo-deny

.PHONY: help demo demo-down test unit libcuda-test vm-test cluster-test lint fmt bench scale image manifests docs release install prepare

help: ## List the targets
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/:.*## /\t/' | while IFS=$$'\t' read -r n d; do printf '  make %-13s %s\n' "$$n" "$$d"; done

demo: release ## A simulated check, then a real cluster on this machine with the agent in it
	@tests/cluster/demo

demo-down: ## End the demo's cluster
	@tests/cluster/down

test: ## Everything: set up, lint, unit, real libcuda, virtual machine, cluster
	@tests/prepare test
	@$(MAKE) --no-print-directory lint unit libcuda-test release image vm-test cluster-test

unit: prepare ## Unit tests and tests of the binary
	cargo test --locked --workspace

libcuda-test: prepare # NVIDIA's own libcuda, with no GPU behind it
	tests/libcuda/deps
	cargo test --locked --test libcuda -- --ignored

vm-test: image ## Real kernel verbs (rdma_rxe) in a QEMU machine
	cargo build --locked --release -p standin-cuda
	tests/vm/deps
	tests/vm/toolkit
	cargo test --locked --test vm -- --ignored

cluster-test: image ## Real Kubernetes: install, faults, restart, upgrade, uninstall
	tests/cluster/deps
	cargo test --locked --test cluster -- --ignored --test-threads=1 --nocapture

lint: prepare ## rustfmt, clippy, cargo deny, helm lint, manifests and docs up to date
	cargo fmt --all --check
	cargo clippy --locked --workspace --all-targets -- -D warnings
	$(DENY) check bans licenses sources
	tests/cluster/deps
	tests/cluster/manifests --check

fmt: ## Format the code
	cargo fmt --all

bench: prepare ## Time of a whole check beside one pair at a time, and of the kubelet's calls (10 minutes)
	cargo bench --locked --bench pairs --bench kubelet

NODES ?= 1000
scale: prepare ## What the agents of NODES=1000 nodes ask of one API server (23 minutes)
	cargo bench --locked --bench scale -- $(NODES)

image: release ## The container image, as target/image/gdr-agent.tar
	tests/image/build

manifests: ## Render manifests/ from the chart
	tests/cluster/manifests

docs: prepare ## Generate docs/reasons.md, docs/faults.md, docs/*.schema.json and the chart's schema
	cargo run --locked --quiet -- explain --markdown > docs/reasons.md
	for what in report config; do cargo run --locked --quiet -- schema $$what > docs/$$what.schema.json; done
	GDR_AGENT_WRITE_DOCS=1 cargo test --locked --quiet --test faults --test schema documentation

release: prepare
	@[[ -x target/release/gdr-agent ]] || echo "building the release binary (usually 3 to 8 minutes on 2 cores)"
	cargo build --locked --release --bin gdr-agent

PREFIX ?= /usr/local
install: release ## Install gdr-agent, and kubectl-gdr for `kubectl gdr`, below PREFIX=/usr/local
	install -D -m 755 target/release/gdr-agent $(DESTDIR)$(PREFIX)/bin/gdr-agent
	ln -sf gdr-agent $(DESTDIR)$(PREFIX)/bin/kubectl-gdr

prepare:
	@tests/prepare build
