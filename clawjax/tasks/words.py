"""The words that generated tasks are made of.

Short, common and lower case, so that a small tokenizer holds each as one
token; none is a part of another (a `grep` for one never finds another), none
is a shell command. A task's set of words decides its split, see `synth`.
"""

_TEXT = """
  apple arrow award bacon badge baker basin beach beard berry birch blade
  blank bloom board boat bonus brick bride brook brush cabin camel candy canoe
  cargo cedar chain chalk charm cheek cheese chess chest cider clay cliff
  clock cloud clover coast cobra cocoa comet coral couch cream crown crumb
  daisy dance delta diary disco dough dozen dragon drama drum eagle earth
  elbow ember engine fable fairy falcon fancy farm feast fence ferry fever
  fiber field flame flask fleet flint flour flute forest fox frost fruit gecko
  ghost giant ginger glass globe glove goat goose grape gravel green guitar
  hammer harbor hazel heart hedge hippo hobby honey horse hotel house iris
  island ivory jacket jade jelly jewel judge juice jungle kayak kettle kiwi
  knife koala label ladder lake lamp laser lemon lens lilac lily lion lizard
  llama lunar magic mango maple marble market meadow medal melon metal mint
  mirror moose motor mouse music nectar needle nest night noble north novel
  nurse oasis ocean olive onion opera orange orbit otter owl oyster paddle
  panda paper parrot pasta peach pearl pebble penny pepper piano picnic pilot
  pizza planet plum polar pony poppy potato prism pulse puppy quail quartz
  queen quilt rabbit radar radio raven ribbon rice river robin rocket rose
  royal rubber ruby rugby saddle salad salmon salt sauce scarf school seal
  shark sheep shell shirt silk silver snail snow soap sofa solar spark spice
  spider spoon spruce squash squid steam stone storm stove straw sugar summer
  swan sword syrup table taco tango tape tiger toast tomato topaz torch tower
  train trout truck tulip tuna turtle valley vapor velvet violet violin wagon
  walnut water whale wheat willow window winter wolf yacht yarn yogurt zebra
  zinc
"""
WORDS = tuple(_TEXT.split())
