# The daily commands.  `make setup` first; the rest runs in its environment.
BIN := .venv/bin

.PHONY: setup check test docs gate

setup:  ## the environment, and the checks before each commit
	python3 -m venv .venv
	$(BIN)/pip install -q -c constraints.txt -e ".[dev,cluster]"
	$(BIN)/pre-commit install

check:  ## style, spelling, types
	$(BIN)/pre-commit run --all-files
	$(BIN)/tox run -e type

test:  ## the fast tests
	$(BIN)/pytest -n 2 --dist loadfile --no-loadscope-reorder

docs:  ## the site, into site/
	$(BIN)/tox run -e docs

gate:  ## has a defense or an attack become weaker?
	$(BIN)/bench gate --baseline .ci/gate.json --out .tox/gate
