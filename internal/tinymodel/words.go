package tinymodel

// words feeds the merges, most useful first; see buildVocab. ASCII only: other scripts are spelled in bytes. A leading blank
// belongs to its word, as in every byte-level BPE. The order is part of the model: a change gives other ids and makes the
// golden files wrong.
const words = " the| a| in| to| of| and| is| you| it| for| on| that| be| with| are| this| as| have| not| can| was| what| we| or| an| from" +
	"|  |    |        |\n\n|...|--|()|//" +
	"|er|re|in|on|at|en|ou|es|ing|or|st|al|ti|le|ar|ed|ll|ic|ro|th|ch|sh|om|us|qu|ve|ce|ly|ent|ion|tion|ment|able|ght|ck|ss|ee|oo" +
	"| I| The| He| It| A| W| S| C| M| T| P| B| D| H| F" +
	"|Hello|What|How|Why|The|This" +
	"| your| how| why| who| when| where| which| will| would| could| should| there| they| their| them| then| than" +
	"| tell| me| my| about| story| please| write| say| help| one| two| three| time| people| world| water| day| new| good" +
	"| so| do| go| up| out| no| if| by| all| some| more| make| like| just| know| take| see| look| find" +
	"| b| c| d| f| g| h| k| l| m| n| p| r| s| u| v| y" +
	"| because| through| first| after| before"
