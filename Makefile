# Remora. `make help` lists the targets; `make run` and `make test` are the two that matter.

SHELL       := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS   += --no-print-directory

# One static file, without symbol tables and without the folder names of the machine that built it; git says which version.
GOBUILD  := CGO_ENABLED=0 go build -trimpath -buildvcs=auto -ldflags "-s -w"
# Runs `go test -json`, prints what a person needs and closes with "N passed, N failed".
TESTSUM  := go run ./tools/testsum

CACHE       := $(CURDIR)/.cache
# Where the stock Dynamo and the real engine live. Point these at an existing venv to save the installation.
DYNAMO_VENV ?= $(CACHE)/dynamo
VLLM_VENV   ?= $(CACHE)/vllm
export REMORA_DYNAMO_VENV = $(DYNAMO_VENV)
export REMORA_VLLM_VENV   = $(VLLM_VENV)
export REMORA_BIN         = $(CURDIR)/bin/remora
export REMORA_SERVICES    = $(CURDIR)/bin

# Arguments of the program: make run ARGS="--port 0"
ARGS ?=
# How long each fuzz target runs.
FUZZTIME ?= 10s
# How many schedules a soak runs, and the first one's seed.
N    ?= 1000000
SEED ?= 0
# Which tests: make test RUN=TestDisconnect
RUN ?= .

.PHONY: help
help: ## list the targets
	@awk -F ':.*## ' '/^[a-z][a-z-]*:.*## / { printf "  %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: build
build: ## build bin/remora: static, stripped
	$(GOBUILD) -o bin/remora ./cmd/remora

.PHONY: run
run: build ## simulated engines, sidecars and an OpenAI front door in one process (ARGS="--port 0")
	@exec bin/remora up $(ARGS)

.PHONY: test
test: build dynamo services ## unit tests under the race detector, then Remora with the stock Dynamo and beside its sidecar (RUN=pattern)
	$(TESTSUM) -race -run '$(RUN)' ./... -- -run '$(RUN)' ./internal/chaos -- -C interop -count=1 -p 1 -timeout 30m -run '$(RUN)' ./tinyllama ./harness ./stock ./differential -- -C bench -run '$(RUN)' ./...

.PHONY: unit
unit: ## unit tests alone
	$(TESTSUM) -run '$(RUN)' ./...

.PHONY: stack
stack: build dynamo engine ## the real thing on this machine: stock frontend, vLLM prefill and decode, two sidecars
	go build -C interop -o ../bin/stack ./cmd/stack
	@exec bin/stack $(ARGS)

.PHONY: test-engine
test-engine: build dynamo engine ## real vLLM engines behind Remora (RUN=pattern)
	$(TESTSUM) -C interop -count=1 -p 1 -timeout 40m -run '$(RUN)' ./engine/...

.PHONY: bench-build
bench-build: ## build the programs of the benchmarks into bin/bench
	go build -C bench -o ../bin/bench/ ./cmd/...

.PHONY: bench
bench: build bench-build ## what Remora's sidecar costs, as a table (ARGS="-quick")
	@bin/bench/bench $(ARGS)

.PHONY: bench-rust
bench-rust: build bench-build dynamo ## the same side by side with the Rust sidecar, 20 minutes and more (ARGS="-rounds 1")
	@bin/bench/bench -rust '$(DYNAMO_VENV)' $(ARGS)

.PHONY: differential
differential: build dynamo ## every case of the comparison with the Rust sidecar (RUN=pattern); make test runs a part of them
	$(TESTSUM) -C interop -count=1 -timeout 20m -run '$(RUN)' ./differential -full

.PHONY: check
check: lint proto-check vuln ## lint, generated code, vulnerabilities

.PHONY: lint
lint: ## golangci-lint over all modules, vet, formatting, tidy go.mod
	for module in . interop bench; do (cd $$module && go mod tidy -diff); done
	go vet ./...
	go tool -modfile=tools/lint.mod golangci-lint run ./...
	cd interop && go vet ./... && go tool -modfile=../tools/lint.mod golangci-lint run --config ../.golangci.yml ./...
	cd bench && go vet ./... && go tool -modfile=../tools/lint.mod golangci-lint run --config ../.golangci.yml ./...
	bash -n .ci/run interop/scripts/*.sh

.PHONY: proto
proto: ## lint the proto files and generate their Go code again
	go tool -modfile=tools.mod buf lint proto
	go tool -modfile=tools.mod buf generate proto --template proto/buf.gen.yaml -o proto

.PHONY: proto-check
proto-check: proto ## generating again changes nothing
	git diff --exit-code -- proto

.PHONY: vuln
vuln: ## known vulnerabilities in what the binary reaches
	go mod verify
	tools/vulncheck.sh ./...

.PHONY: fuzz
fuzz: ## run every fuzz target for FUZZTIME (default 10s)
	@for pkg in $$(go list ./...); do \
	  for target in $$(go test -list '^Fuzz' "$$pkg" | grep '^Fuzz' || true); do \
	    echo "$$pkg $$target"; \
	    go test -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) "$$pkg"; \
	  done; \
	done

.PHONY: soak
soak: ## N random schedules of the hand-off in virtual time, from SEED on (N=1000000)
	go test ./internal/chaos -run '^TestSchedules$$' -schedules $(N) -seed $(SEED) -timeout 0 -v

.PHONY: services
services: ## build the etcd and NATS servers that the tests run, into bin
	go build -modfile=tools/services.mod -o bin/etcd go.etcd.io/etcd/server/v3
	go build -modfile=tools/services.mod -o bin/nats-server github.com/nats-io/nats-server/v2

.PHONY: dynamo
dynamo: ## install the stock Dynamo into DYNAMO_VENV (once, about a minute)
	@interop/scripts/install-dynamo.sh '$(DYNAMO_VENV)'

.PHONY: engine
engine: ## install a real vLLM for CPU into VLLM_VENV (once, minutes)
	@interop/scripts/install-vllm.sh '$(VLLM_VENV)'

.PHONY: clean
clean: ## remove what was built; the installed Dynamo and vLLM stay
	rm -rf bin

.PHONY: distclean
distclean: clean ## also remove the installed Dynamo and vLLM
	rm -rf .cache
