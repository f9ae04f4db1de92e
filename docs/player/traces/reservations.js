// Made by docs/player/make_traces.py; not to be edited.
addTrace({"name": "reservations", "group": "reservations", "title": "Two reservations, and one is too short", "command": "step2_flat_cache --max-seq-len 8 --prompt \"The wolf said\" --prompt \"The king had a daughter\" --tokens 6 --ignore-eos"}, [
{"schema":1,"step":"step2_flat_cache","model":"common/fairytale","block_size":8,"blocks":2,"host_blocks":0},
{"event":"plan","sequences":[{"sequence":0,"first":0,"length":3,"token_ids":[334,2489,356],"texts":["The"," wolf"," said"]}],"fresh":[0],"changes":{"tables":{"0":[0]},"references":{"0":1},"free":{"taken":[0]}}},
{"event":"commit","sequences":[0],"changes":{"lengths":{"0":3}}},
{"event":"plan","sequences":[{"sequence":1,"first":0,"length":5,"token_ids":[334,799,347,259,1034],"texts":["The"," king"," had"," a"," daughter"]}],"fresh":[1],"changes":{"tables":{"1":[1]},"references":{"1":1},"free":{"taken":[1]}}},
{"event":"commit","sequences":[1],"changes":{"lengths":{"1":5}}},
{"event":"plan","sequences":[{"sequence":0,"first":3,"length":4,"token_ids":[356],"texts":[" said"]},{"sequence":1,"first":5,"length":6,"token_ids":[419],"texts":[" who"]}],"changes":{}},
{"event":"commit","sequences":[0,1],"changes":{"lengths":{"0":4,"1":6}}},
{"event":"plan","sequences":[{"sequence":0,"first":4,"length":5,"token_ids":[12],"texts":[","]},{"sequence":1,"first":6,"length":7,"token_ids":[311],"texts":[" was"]}],"changes":{}},
{"event":"commit","sequences":[0,1],"changes":{"lengths":{"0":5,"1":7}}},
{"event":"plan","sequences":[{"sequence":0,"first":5,"length":6,"token_ids":[388],"texts":[" “"]},{"sequence":1,"first":7,"length":8,"token_ids":[523],"texts":[" very"]}],"changes":{}},
{"event":"commit","sequences":[0,1],"changes":{"lengths":{"0":6,"1":8}}},
{"event":"free","sequence":1,"reason":"capacity","changes":{"tables":{"1":null},"references":{"1":0},"free":{"front":[1]}}},
{"event":"plan","sequences":[{"sequence":0,"first":6,"length":7,"token_ids":[41],"texts":["I"]}],"changes":{}},
{"event":"commit","sequences":[0],"changes":{"lengths":{"0":7}}},
{"event":"plan","sequences":[{"sequence":0,"first":7,"length":8,"token_ids":[432],"texts":[" will"]}],"changes":{}},
{"event":"commit","sequences":[0],"changes":{"lengths":{"0":8}}},
{"event":"free","sequence":0,"reason":"length","changes":{"tables":{"0":null},"references":{"0":0},"free":{"front":[0]}}},
{"event":"end","blocks":{"free":0,"cached":0,"in_use":0},"counters":{"prefix_hits":0,"evictions":0,"preemptions":0,"copies":0,"swaps_out":0,"swaps_in":0}}
])
