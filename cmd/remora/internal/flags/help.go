package flags

import (
	"strings"
	"unicode/utf8"
)

// width is the column at which help text is wrapped.
const width = 96

// Help is the text that --help prints.
func (s *Set) Help() string {
	var out strings.Builder
	out.WriteString(wrap(s.Summary, 0))
	out.WriteString("\n" + s.usage() + "\n")
	for _, g := range s.Groups {
		out.WriteString("\n" + g.Title + ":\n")
		if g.Note != "" {
			out.WriteString(wrap(g.Note, 2))
		}
		for i, f := range g.Flags {
			if i > 0 || g.Note != "" {
				out.WriteByte('\n')
			}
			describe(&out, "      "+f.signature(), f.Help, f.Env, f.Default, f.Value)
		}
		for i, v := range g.Variables {
			if i > 0 || g.Note != "" || len(g.Flags) > 0 {
				out.WriteByte('\n')
			}
			describe(&out, "      "+v.Name, v.Help, "", v.Default, v.Value)
		}
	}
	out.WriteString("\n  -h, --help\n          Print this help\n")
	return out.String()
}

// describe writes one entry: its name, what it is for, and the facts about its value.
func describe(out *strings.Builder, head, help, env, def string, value Value) {
	out.WriteString(head + "\n" + wrap(help, 10))
	var facts []string
	if env != "" {
		facts = append(facts, "[env: "+env+"]")
	}
	if def != "" {
		facts = append(facts, "[default: "+def+"]")
	}
	explained := false
	for _, w := range value.words {
		explained = explained || w.help != ""
	}
	switch {
	case explained:
		for _, w := range value.words {
			out.WriteString(wrap("- "+w.text+": "+w.help, 10))
		}
	case len(value.words) > 0 && !value.isSwitch:
		facts = append(facts, "[possible values: "+join(value.texts())+"]")
	}
	if len(facts) == 0 {
		return
	}
	const margin = "          "
	line := strings.Join(facts, " ")
	if len(margin)+utf8.RuneCountInString(line) > width {
		line = strings.Join(facts, "\n"+margin)
	}
	out.WriteString(margin + line + "\n")
}

// wrap breaks a text into lines of at most width columns, each behind indent blanks. Words longer than a line stay whole.
func wrap(text string, indent int) string {
	var out strings.Builder
	column := 0
	for w := range strings.FieldsSeq(text) {
		size := utf8.RuneCountInString(w)
		switch {
		case column == 0:
			out.WriteString(strings.Repeat(" ", indent))
			column = indent
		case column+1+size > width:
			out.WriteString("\n" + strings.Repeat(" ", indent))
			column = indent
		default:
			out.WriteByte(' ')
			column++
		}
		out.WriteString(w)
		column += size
	}
	if column > 0 {
		out.WriteByte('\n')
	}
	return out.String()
}
