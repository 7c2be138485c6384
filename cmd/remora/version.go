package main

import (
	"context"
	"fmt"
	"runtime/debug"

	"remora/cmd/remora/internal/flags"
)

// version prints what was built, from what, and with which compiler.
func version(_, _ context.Context, sys system) error {
	if _, err := versionHelp().Parse(sys.args, sys.lookup); err != nil {
		return err //nolint:wrapcheck // conclude tells the kinds apart
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return refusal("this binary carries no build information")
	}
	if _, err := fmt.Fprintln(sys.stdout, describeBuild(info)); err != nil {
		return fmt.Errorf("can't write the answer: %w", err)
	}
	return nil
}

func versionHelp() *flags.Set {
	return &flags.Set{Command: "remora version", Summary: "Print the version, the source revision and the compiler."}
}

// describeBuild is one line: "remora v1.2.0 (revision 0123456789ab, modified, go1.26.8)".
func describeBuild(info *debug.BuildInfo) string {
	number := info.Main.Version
	if number == "" {
		number = "(devel)"
	}
	detail := info.GoVersion
	for _, s := range info.Settings {
		switch {
		case s.Key == "vcs.modified" && s.Value == "true":
			detail = "modified, " + detail
		case s.Key == "vcs.revision":
			detail = "revision " + s.Value[:min(12, len(s.Value))] + ", " + detail
		}
	}
	return "remora " + number + " (" + detail + ")"
}
