# Shared by ./demo, ./check and .ci/run: installs the packages that are missing, and builds.
# Sourced, not run. The caller stands in the root of the repository.
#
#   setup SECTION...            exit 3 with the command to type where it may not install
#   build DIR TARGET [CMAKE OPTION...]

# Exit codes, as the tools have them.
readonly usage_error=2 environment_error=3

say() { printf 'noria: %s\n' "$*" >&2; }

# The packages of the named sections of packages.txt.
packages_of() {
  awk -v wanted=" $* " '
    { sub(/[ \t]*#.*/, "") }
    /^\[/ { name = $0; gsub(/[][]/, "", name); on = index(wanted, " " name " ") > 0; next }
    NF && on { print $1 }' packages.txt
}

# The packages that dpkg does not show as installed.
missing_packages() {
  local package
  for package in $(packages_of "$@"); do
    [ "$(dpkg-query -W -f='${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
      printf '%s\n' "$package"
  done
}

refuse_to_install() {  # WHY PACKAGE...
  local why=$1
  shift
  say "$why"
  say "lacking: $*"
  say "to go on, type this as root, then repeat the command:"
  say "  apt-get update && apt-get install -y --no-install-recommends $*"
  exit $environment_error
}

setup() {
  if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
    say "this is neither Debian nor Ubuntu, so nothing can be installed from here."
    say "Install what these packages of Debian hold:" $(packages_of "$@")
    say "then: cmake -B build && cmake --build build -j"
    exit $environment_error
  fi
  local missing
  missing=$(missing_packages "$@" | tr '\n' ' ')
  missing=${missing% }
  [ -n "$missing" ] || return 0

  local as_root=""
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null ||
      refuse_to_install "packages are missing, and this is neither root nor has it sudo." $missing
    # Without a terminal sudo could not ask for a password.
    if ! sudo -n true 2>/dev/null && ! [ -t 0 ]; then
      refuse_to_install "packages are missing, and sudo asks for a password." $missing
    fi
    as_root=sudo
  fi
  say "installing $missing"
  local log
  log=$(mktemp)
  # The lists of packages may be absent or old; they are fetched only if the install fails.
  if ! install_packages "$as_root" $missing >"$log" 2>&1; then
    say "the lists of packages are absent or old: fetching them"
    if ! { $as_root apt-get -qq update && install_packages "$as_root" $missing; } >"$log" 2>&1; then
      tail -n 15 "$log" >&2
      rm -f "$log"
      refuse_to_install "apt-get failed; its last words are above." $missing
    fi
  fi
  rm -f "$log"
}

install_packages() {  # SUDO PACKAGE...
  local as_root=$1
  shift
  $as_root env DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 \
    install -y --no-install-recommends "$@"
}

build() {
  local dir=$1 target=$2
  shift 2
  # A folder that was configured before keeps its generator.
  [ -f "$dir/CMakeCache.txt" ] || set -- -G Ninja "$@"
  if command -v ccache >/dev/null; then
    set -- -DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache "$@"
  fi
  mkdir -p "$dir"
  if ! cmake -B "$dir" "$@" >"$dir/configure.log" 2>&1; then
    tail -n 30 "$dir/configure.log" >&2
    say "cmake could not configure $dir; all of its output is in $dir/configure.log"
    return 1
  fi
  say "building $dir ($target)"
  # On a terminal ninja shows its progress in one line; in a log only what failed is worth a line.
  if [ -t 1 ]; then
    cmake --build "$dir" --target "$target" --parallel
  else
    cmake --build "$dir" --target "$target" --parallel >"$dir/build.log" 2>&1 || {
      grep -vE '^\[[0-9]+/[0-9]+\] (Building|Linking|Creating)' "$dir/build.log" | tail -n 80 >&2
      say "the build failed; all of its output is in $dir/build.log"
      return 1
    }
  fi
}

# Runs ctest in DIR and says how many single tests were skipped, and why: ctest counts executables,
# and a skipped test inside one would otherwise go unseen. ctest's own words stay in DIR/ctest.log.
run_tests() {  # DIR [OPTION of ctest...]
  local dir=$1 outcome=0 log skips
  shift
  ctest --test-dir "$dir" --output-on-failure --no-tests=error --parallel "$(nproc)" "$@" |
    tee "$dir/ctest.log" || outcome=1
  log=$dir/Testing/Temporary/LastTest.log
  skips=$(grep -cE '^\[  SKIPPED \] .* \([0-9]+ ms\)$' "$log" || true)
  if [ "$skips" != 0 ]; then
    # googletest prints where and why just before the verdict.
    grep -A2 -E ': Skipped$' "$log" | grep -vE '^(--)?$' || true
  fi
  printf 'skipped: %s\n' "$skips"
  return $outcome
}
