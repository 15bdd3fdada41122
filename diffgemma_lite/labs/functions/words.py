"""What the generator draws from: names, operations and their wordings. The last wording of a tuple
is held out.
"""

from __future__ import annotations

VERBS = (
    "get",
    "make",
    "find",
    "pick",
    "calc",
    "build",
    "give",
    "run",
    "take",
    "eval",
    "solve",
    "work",
)
NOUNS = (
    "items",
    "data",
    "result",
    "values",
    "part",
    "answer",
    "info",
    "stats",
    "thing",
    "task",
    "case",
    "step",
)
HELD_OUT_VERBS, HELD_OUT_NOUNS = ("produce", "derive"), ("output", "summary")
ARGUMENTS = {  # kind of argument -> {its name: the usual name of one of its elements}
    "ints": {
        "nums": "n",
        "values": "v",
        "xs": "x",
        "numbers": "n",
        "data": "d",
        "scores": "s",
        "counts": "c",
    },
    "words": {
        "words": "w",
        "names": "name",
        "items": "item",
        "tags": "t",
        "lines": "line",
        "keys": "key",
    },
    "text": {"text": "c", "s": "c", "string": "ch", "line": "c", "phrase": "ch"},
    "dict": {"d": "v", "table": "v", "prices": "p", "ages": "a", "stock": "v"},
}
HELD_OUT_ARGUMENTS = {
    "ints": {"amounts": "a"}, "words": {"labels": "label"}, "text": {"sentence": "c"},
    "dict": {"lookup": "v"},
}  # fmt: skip
ELEMENTS = ("x", "e", "i", "item", "y", "z")  # other names of an element
LIMITS = ("k", "limit", "size", "m", "bound")
HELD_OUT_LIMITS = ("threshold",)
LISTS, TOTALS = ("result", "out", "found", "kept", "res"), ("total", "acc", "count", "answer", "t")

# key: (code, wording, wording, ...); {x} is the element, {k} a small number or the second argument
INT_TESTS = {
    "even": ("{x} % 2 == 0", "even", "an even number", "divisible by two"),
    "odd": ("{x} % 2 == 1", "odd", "an odd number", "not even"),
    "positive": ("{x} > 0", "positive", "greater than zero", "more than zero"),
    "negative": ("{x} < 0", "negative", "less than zero", "under zero"),
    "above": ("{x} > {k}", "above {k}", "greater than {k}", "more than {k}"),
    "below": ("{x} < {k}", "below {k}", "less than {k}", "under {k}"),
    "multiple": ("{x} % {k} == 0", "a multiple of {k}", "divisible by {k}", "in the table of {k}"),
    "not": ("{x} != {k}", "not {k}", "different from {k}", "unlike {k}"),
}
WORD_TESTS = {
    "longer": (
        "len({x}) > {k}",
        "longer than {k}",
        "of more than {k} letters",
        "over {k} letters long",
    ),
    "shorter": (
        "len({x}) < {k}",
        "shorter than {k}",
        "of less than {k} letters",
        "under {k} letters long",
    ),
    "exactly": ("len({x}) == {k}", "of {k} letters", "of length {k}", "exactly {k} long"),
    "lower": ("{x}.islower()", "lower case", "in lower case", "all small letters"),
    "upper": ("{x}.isupper()", "upper case", "in upper case", "all capitals"),
    "starts": (
        "{x}.startswith('{c}')",
        "starting with '{c}'",
        "beginning with '{c}'",
        "that open with '{c}'",
    ),
    "ends": (
        "{x}.endswith('{c}')",
        "ending with '{c}'",
        "ending in '{c}'",
        "that close with '{c}'",
    ),
    "contains": ("'{c}' in {x}", "containing '{c}'", "with '{c}' in it", "that hold '{c}'"),
    "mirror": ("{x} == {x}[::-1]", "a palindrome", "the same backwards", "mirrored"),
}
LETTER_TESTS = {
    "vowel": ("{x} in 'aeiou'", "a vowel", "one of 'aeiou'", "vowel"),
    "letter": ("{x}.isalpha()", "a letter", "alphabetic", "from the alphabet"),
    "digit": ("{x}.isdigit()", "a digit", "numeric", "from 0 to 9"),
    "capital": ("{x}.isupper()", "upper case", "a capital", "in capitals"),
    "nonspace": ("{x} != ' '", "not a space", "no space", "other than a space"),
}
INT_MAPS = {
    "double": ("{x} * 2", "double", "multiply by 2", "scale by two"),
    "square": ("{x} * {x}", "square", "take the square of", "multiply with itself"),
    "negate": ("-{x}", "negate", "flip the sign of", "invert the sign of"),
    "abs": ("abs({x})", "take the absolute value of", "drop the sign of", "get the magnitude of"),
    "add": ("{x} + {k}", "add {k} to", "increase by {k}", "raise by {k}"),
    "subtract": ("{x} - {k}", "subtract {k} from", "decrease by {k}", "lower by {k}"),
    "times": ("{x} * {k}", "multiply by {k}", "scale by {k}", "take {k} times"),
    "modulo": ("{x} % {k}", "take modulo {k}", "get the remainder by {k} of", "reduce modulo {k}"),
    "halve": ("{x} // 2", "halve", "divide by 2", "take half of"),
}
WORD_MAPS = {
    "upper": ("{x}.upper()", "upper-case", "turn to upper case", "make capitals of"),
    "lower": ("{x}.lower()", "lower-case", "turn to lower case", "make small letters of"),
    "title": ("{x}.capitalize()", "capitalize", "start with a capital", "give a first capital"),
    "flip": ("{x}[::-1]", "reverse", "turn around", "spell backwards"),
    "length": ("len({x})", "take the length of", "measure", "count the letters of"),
    "first": ("{x}[:1]", "take the first letter of", "get the initial of", "cut to one letter"),
    "last": (
        "{x}[-1:]",
        "take the last letter of",
        "get the final letter of",
        "keep the ending of",
    ),
    "cut": ("{x}[:{k}]", "cut to {k} letters", "shorten to {k}", "truncate to {k}"),
    "twice": ("{x} * 2", "repeat twice", "say twice", "write two times"),
    "mark": ("{x} + '{c}'", "add '{c}' to", "append '{c}' to", "put '{c}' after"),
}
LETTER_MAPS = {name: WORD_MAPS[name] for name in ("upper", "lower", "twice", "mark")}
SHAPES = {  # {e} is the whole list
    "sort": ("sorted({e})", "sort", "order", "arrange upwards"),
    "descending": (
        "sorted({e}, reverse=True)",
        "sort downwards",
        "sort in descending order",
        "order from the top",
    ),
    "first": ("{e}[:{k}]", "take the first {k}", "keep the first {k}", "stop after {k}"),
    "last": ("{e}[-{k}:]", "take the last {k}", "keep the last {k}", "leave the final {k}"),
    "skip": ("{e}[{k}:]", "skip the first {k}", "drop the first {k}", "start after {k}"),
    "second": ("{e}[::2]", "take every second one", "keep every other one", "skip each second one"),
    "reverse": ("{e}[::-1]", "reverse the order", "put the last first", "go backwards"),
    "distinct": (
        "sorted(set({e}))",
        "remove duplicates and sort",
        "sort without repeats",
        "order the unique ones",
    ),
}
WORD_SHAPES = SHAPES | {
    "by length": (
        "sorted({e}, key=len)",
        "sort by length",
        "order by length",
        "shortest ones first",
    )
}
INT_FOLDS = {
    "sum": ("sum({e})", "return the sum", "add them up", "total them"),
    "largest": (
        "max({e}, default=0)",
        "return the largest",
        "find the maximum",
        "give the biggest",
    ),
    "smallest": (
        "min({e}, default=0)",
        "return the smallest",
        "find the minimum",
        "give the least",
    ),
    "count": ("len({e})", "count them", "return how many", "give their number"),
    "unique": (
        "len(set({e}))",
        "count the distinct ones",
        "return how many differ",
        "number the unique ones",
    ),
}
WORD_FOLDS = {
    "join": ("'{j}'.join({e})", "join with '{j}'", "glue with '{j}'", "connect by '{j}'"),
    "longest": ("max({e}, key=len, default='')", "return the longest", "find the longest",
                "give the lengthiest"),
    "shortest": ("min({e}, key=len, default='')", "return the shortest", "find the shortest",
                 "give the briefest"),
    "count": INT_FOLDS["count"], "unique": INT_FOLDS["unique"],
}  # fmt: skip
ASKS = {
    "keep": ("keep what is {p}", "take only what is {p}", "filter for what is {p}",
             "select what is {p}"),
    "map": ("{m} each", "{m} every one", "{m} all", "{m} each of them"),
    "any": ("tell if any is {p}", "check whether one is {p}", "say if some is {p}"),
    "every": ("tell if all are {p}", "check whether each is {p}", "say if every one is {p}"),
    "find": ("return the first that is {p} or None", "find the first one {p}, else None",
             "seek one {p} or None"),
    "how many": ("count what is {p}", "return how many are {p}", "give the number of what is {p}"),
    "branch": ("{m} what is {p} and {o} the rest", "if {p} {m}, else {o}",
               "{m} if {p}, otherwise {o}"),
    "tally": ("count each one in a dict", "map each one to its count", "tabulate the frequencies"),
    "running": ("return the running sums", "add up step by step", "accumulate"),
    "product": ("return the product", "multiply them all", "take the product"),
    "gaps": ("take the difference of neighbours", "subtract each from the next", "list the gaps"),
    "by": ("group by {g}", "make a dict of lists by {g}", "collect by {g}"),
    "split": ("split into words", "take the words", "break at spaces"),
    "values": ("take the values", "use the values", "look at the values"),
    "names": ("take the keys", "use the keys", "look at the keys"),
    "entries": ("for each key", "in every entry", "key by key"),
    "cap": ("cap at {k}", "return at most {k}", "limit to {k}"),
    "label": ("say 'high' above {k}, 'low' below zero, else 'mid'", "label 'high' over {k}, "
    "'low' if negative, or 'mid'",
              "answer 'high' past {k}, 'low' under zero, 'mid' else"),
    "guard": ("return {r} if {a} is empty", "for empty {a} give {r}",
              "answer {r} when {a} has nothing"),
    "zip": ("add {a} and {b} pairwise", "sum the pairs of {a} and {b}",
            "add {b} to {a} place by place"),
    "common": ("keep of {a} what is in {b}", "take the part of {a} also in {b}",
               "intersect {a} with {b}"),
    "minus": ("remove from {a} what is in {b}", "take {a} without {b}", "exclude {b} from {a}"),
}  # fmt: skip
GROUPS = {
    "parity": ("{x} % 2", "parity", "remainder by 2", "even or odd"),
    "length": ("len({x})", "length", "number of letters", "size"),
    "initial": ("{x}[:1]", "first letter", "initial", "beginning"),
}
