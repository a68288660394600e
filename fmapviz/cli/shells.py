"""Scripts that complete `fmapviz` in shells, and where each belongs.

A script calls `fmapviz` with the shell's name in `_FMAPVIZ_COMPLETE`, and reads a kind, see `fmapviz.cli.completers`, and
values with their descriptions, separated by a tab, one in each line.
"""

from __future__ import annotations

import os
import shlex
import subprocess
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path, PurePath

from fmapviz.core import files
from fmapviz.core.files import writing_to
from fmapviz.errors import OutputError

# Bash splits words at colons and equals signs: the line itself is passed. Bash 3.2 of macOS has no `compopt`.
_BASH = r"""
_fmapviz_completion() {
    local line kind='' IFS=$'\n'
    COMPREPLY=()
    while IFS= read -r line; do
        if [ -z "$kind" ]; then kind=$line; else COMPREPLY+=("${line%%$'\t'*}"); fi
    done < <(_FMAPVIZ_COMPLETE=bash _FMAPVIZ_LINE="${COMP_LINE:0:COMP_POINT}" _FMAPVIZ_BREAKS="$COMP_WORDBREAKS" \
             "$1" 2>/dev/null)
    type compopt >/dev/null 2>&1 || return 0
    case $kind in
        files) compopt -o default ;;
        directories) compopt -o dirnames ;;
    esac
    if [ ${#COMPREPLY[@]} -gt 0 ]; then
        case $kind in files|directories) compopt -o filenames -o noquote 2>/dev/null ;; esac
    fi
    if [ ${#COMPREPLY[@]} -eq 1 ]; then
        case ${COMPREPLY[0]} in *[:/=]) compopt -o nospace ;; esac
    fi
}
if type compopt >/dev/null 2>&1; then
    complete -F _fmapviz_completion fmapviz
else
    complete -o default -F _fmapviz_completion fmapviz
fi
"""

_ZSH = r"""
#compdef fmapviz
_fmapviz() {
    local kind line value
    local -a lines ended open known
    lines=("${(@f)$(_FMAPVIZ_COMPLETE=zsh _FMAPVIZ_WORD="$QIPREFIX$PREFIX" "${(@Q)words[1,CURRENT-1]}" 2>/dev/null)}")
    kind=$lines[1]
    for line in "${(@)lines[2,-1]}"; do
        value=${line%%$'\t'*}
        known+=("${(b)value}")
        compquote value # _files compares what it inserts
        known+=("${(b)value}")
        value=${${${line%%$'\t'*}//\\/\\\\}//:/\\:}
        [[ $line == *$'\t'?* ]] && line=$value:${line#*$'\t'} || line=$value
        if [[ $value == *[:/=] ]]; then open+=("$line"); else ended+=("$line"); fi
    done
    (( $#ended )) && _describe -t values value ended
    (( $#open )) && _describe -t open value open -S ''
    case $kind in
        files) _files ;;
        directories) _files -/ -F known ;; # those besides the values, which have no slash at their end
    esac
}
if [[ $funcstack[1] == _fmapviz ]]; then _fmapviz "$@"; else compdef _fmapviz fmapviz; fi
"""

_FISH = r"""
function __fmapviz_complete
    set -l words (commandline -opc)
    set -l word (commandline -ct)
    set -l lines (env _FMAPVIZ_COMPLETE=fish _FMAPVIZ_WORD="$word" $words 2>/dev/null)
    set -l values
    if test (count $lines) -gt 1
        printf '%s\n' $lines[2..-1]
        set values (string replace --regex '\t.*' '' -- $lines[2..-1])
    end
    switch "$lines[1]"
        case files
            __fish_complete_path "$word"
        case directories # the values are some of them, without a slash at the end
            for directory in (__fish_complete_directories "$word" '')
                contains -- (string replace --regex '/?\t.*|/$' '' -- $directory) $values; or printf '%s\n' $directory
            end
    end
end
complete --command fmapviz --erase
complete --command fmapviz --no-files --arguments '(__fmapviz_complete)'
"""

_POWERSHELL = r"""
Register-ArgumentCompleter -Native -CommandName fmapviz -ScriptBlock {
    param($wordToComplete, $commandAst, $cursorPosition)
    $before = $commandAst.CommandElements | Where-Object { $_.Extent.EndOffset -lt $cursorPosition }
    $words = @($before | ForEach-Object { if ($null -ne $_.Value) { [string]$_.Value } else { "$_" } })
    $program, $words = $words
    $env:_FMAPVIZ_COMPLETE = 'powershell'
    $env:_FMAPVIZ_WORD = $wordToComplete
    try { $lines = @(& $program @words 2>$null) }
    finally { Remove-Item Env:_FMAPVIZ_COMPLETE, Env:_FMAPVIZ_WORD -ErrorAction SilentlyContinue }
    $lines | Select-Object -Skip 1 | ForEach-Object {
        $value, $text = $_ -split "`t", 2
        if (-not $text) { $text = $value }
        # PowerShell takes typographic quotation marks for straight ones, and splits -a.b and a,b.
        $plain = $value -match '^(--?[\w-]+|[\w/\\:=+][\w./\\:=+-]*)$'
        $shown = if ($plain) { $value } else { "'" + ($value -replace "['\u2018-\u201b]", '$0$0') + "'" }
        [System.Management.Automation.CompletionResult]::new($shown, $value, 'ParameterValue', $text)
    }
}
"""

SCRIPTS = {"bash": _BASH.lstrip(), "zsh": _ZSH.lstrip(), "fish": _FISH.lstrip(), "powershell": _POWERSHELL.lstrip()}


def current_shell() -> str | None:
    """Return the name of the shell that called this process, or of the user's own; None if neither is known."""
    import shellingham

    name = PurePath(os.environ.get("SHELL", "")).name
    with suppress(shellingham.ShellDetectionFailure, OSError):
        called, _ = shellingham.detect_shell()
        name = called if called in {*SCRIPTS, "pwsh"} else name  # a script runs in sh
    return "powershell" if name == "pwsh" else name or None


@dataclass(frozen=True, slots=True)
class Place:
    """Where the script of a shell belongs.

    Attributes:
        script: Its file.
        startup: The file that the shell reads when it starts; None if it finds the script itself.
        line: The line of that file that loads the script.
    """

    script: Path
    startup: Path | None = None
    line: str = ""


def place_of(shell: str) -> Place:
    """Return where the script of a shell belongs: for bash, zsh and fish where Typer's option has put it.

    Raises:
        OutputError: The user has no home directory, or PowerShell is missing or names no profile.
    """
    try:
        home = Path.home()
    except RuntimeError as error:
        raise OutputError(
            "the user has no home directory", hint=f"`fmapviz completion {shell}` prints the script"
        ) from error
    if shell == "bash":
        script = home / ".bash_completions" / "fmapviz.sh"
        return Place(script, home / ".bashrc", f"source {shlex.quote(str(script))}")  # noqa: TID251  for bash
    if shell == "zsh":
        startup = Path(os.environ.get("ZDOTDIR") or home) / ".zshrc"
        return Place(home / ".zfunc" / "_fmapviz", startup, "fpath+=~/.zfunc; autoload -Uz compinit; compinit")
    if shell == "fish":
        return Place(Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config") / "fish" / "completions" / "fmapviz.fish")
    profile = _profile()
    script = profile.parent / "fmapviz-completion.ps1"
    quoted = str(script).replace("'", "''")
    return Place(script, profile, f". '{quoted}'")


def install_script(shell: str) -> list[str]:
    """Write the script of a shell, and load it when the shell starts. What is there already stays.

    Returns:
        What was done, and how to undo it, in sentences.

    Raises:
        OutputError: A file cannot be written, or as `place_of`.
    """
    place, done = place_of(shell), []
    content = SCRIPTS[shell].encode()
    with writing_to(place.script):
        if not os.path.isfile(place.script) or place.script.read_bytes() != content:
            files.make_folders(place.script.parent)
            files.write_over(Path(os.path.realpath(place.script)), content)
            done.append(f"wrote {place.script}")
    undo = f"undo: remove {place.script}"
    if place.startup:
        with writing_to(place.startup):
            present = place.startup.read_text(errors="replace").splitlines() if os.path.exists(place.startup) else []
            if place.line not in map(str.strip, present):
                files.make_folders(place.startup.parent)
                files.append(Path(os.path.realpath(place.startup)), f"{place.line}\n".encode())
                done.append(f"added a line to {place.startup}: {place.line}")
        undo += f", and the line {place.line} from {place.startup}"
    return [*(done or ["nothing to do: it is installed"]), "it works in new terminals", undo]


def _profile() -> Path:
    """Return the file that PowerShell reads when it starts."""
    for program in ("pwsh", "powershell"):
        with suppress(OSError, subprocess.SubprocessError):
            command = [program, "-NoProfile", "-Command", "Write-Output $PROFILE"]
            found = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60)  # noqa: S603  no user text
            if found.stdout.strip():
                return Path(found.stdout.strip())
    problem = "PowerShell is not installed here, or names no profile"
    raise OutputError(problem, hint="`fmapviz completion powershell` prints the script")
